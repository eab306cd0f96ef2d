package queue

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A queue explains with the calls that wait before, which the bucket does not know yet, and the call
// then leaves at that time.
func TestExplain_CountsWaitingCalls(t *testing.T) {
	for _, limit := range []outbound.Limit{outbound.PerSecond(10), outbound.Window(3, time.Second), {Capacity: 2, LeakRate: 1}} {
		bothWays(t, []outbound.Limit{limit}, func(t *testing.T, b *outbound.Bucket) {
			q := New(b, Config{})
			e, err := q.Explain(bg, one)
			if err != nil || e.Wait != 0 || e.Because != "" || e.Ahead != 0 {
				t.Errorf("%v, %v", e, err)
			}
			comeAll(20, bg, q, 1)
			e, err = q.Explain(bg, one)
			if err != nil || e.Ahead != q.Len() || e.Ahead < 17 || e.Because != "booked" || !strings.Contains(e.String(), "ahead in") {
				t.Errorf("%v, %v", e, err)
			}
			alone, _ := b.Explain(bg, one)
			if alone.Wait >= e.Wait || alone.Ahead != 0 {
				t.Errorf("the bucket explains %v, and the queue %v", alone.Wait, e.Wait)
			}
			begin := time.Now()
			admitted(t, q, 1)
			if took := time.Since(begin); took < e.Wait || limit.Capacity < 3 && took > e.Wait+50*ms {
				t.Errorf("%v: left after %v, and Explain has %v", limit, took, e.Wait)
			}
		})
	}
}

// However many calls wait, and whether or not they have deadlines, Explain has the time of a call that
// would come then.
func TestExplain_CountsThousandsOfWaitingCalls(t *testing.T) {
	for name, within := range map[string]time.Duration{"without deadlines": 0, "with deadlines": time.Hour, "with deadlines that half of them miss": 155 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 10}), Config{})
			ctx, cancel := context.WithCancel(bg)
			defer synctest.Wait()
			defer cancel()
			for i := range 3001 {
				ctx := ctx
				if i > 100 && within > 0 {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, within)
					defer stop()
				}
				come(ctx, q, 1)
			}
			want := time.Duration(q.Len()) * time.Second / 10
			for range 3 {
				if e, err := q.Explain(bg, one); err != nil || e.Ahead != q.Len() || (e.Wait-want-time.Second/10).Abs() > time.Second/10 {
					t.Errorf("%s: %v, %v, want %v", name, e, err, want)
				}
			}
		})
	}
}
