package queue_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// A queue explains with the calls that wait before, of which the bucket knows nothing yet, and the call then
// goes when it was told.
func TestExplain_CountsWaitingCalls(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, limit := range []outbound.Limit{outbound.PerSecond(10), outbound.Window(3, time.Second), {Capacity: 2, LeakRate: 1}} {
			synctest.Test(t, func(t *testing.T) {
				b := outbound.Must(outbound.NewBucket("key", limit))
				if shared {
					b = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "key", limit))
				}
				q := queue.New(b, queue.Config{})
				e, err := q.Explain(t.Context(), outbound.Cost{1})
				if err != nil || e.Wait != 0 || e.Because != "" || e.Ahead != 0 {
					t.Errorf("%v, %v", e, err)
				}
				for range 20 {
					go func() {
						p, err := q.Acquire(t.Context(), outbound.Cost{1})
						if err != nil {
							t.Error(err)
						}
						p.Done()
					}()
				}
				synctest.Wait()
				e, err = q.Explain(t.Context(), outbound.Cost{1})
				if err != nil || e.Ahead != q.Len() || e.Ahead < 17 || e.Because != "booked" || !strings.Contains(e.String(), "ahead in") {
					t.Errorf("%v, %v", e, err)
				}
				alone, _ := b.Explain(t.Context(), outbound.Cost{1})
				if alone.Wait >= e.Wait || alone.Ahead != 0 {
					t.Errorf("the bucket tells %v, and the queue %v", alone.Wait, e.Wait)
				}
				begin := time.Now()
				if _, err := q.Acquire(t.Context(), outbound.Cost{1}); err != nil {
					t.Error(err)
				}
				if took := time.Since(begin); took < e.Wait || limit.Capacity < 3 && took > e.Wait+50*time.Millisecond {
					t.Errorf("%v: went after %v, and %v was told", limit, took, e.Wait)
				}
			})
		}
	}
}

// However many wait, and whether or not they have deadlines, each look tells when a call would go that came now.
func TestExplain_CountsThousandsOfWaitingCalls(t *testing.T) {
	for name, within := range map[string]time.Duration{"without deadlines": 0, "with deadlines": time.Hour, "with deadlines that half of them miss": 155 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("key", outbound.Limit{Capacity: 1, LeakRate: 10}))
			q := queue.New(b, queue.Config{})
			ctx, cancel := context.WithCancel(t.Context())
			defer synctest.Wait()
			defer cancel()
			want := 300 * time.Second
			for i := range 3001 {
				ctx := ctx
				if i > 100 && within > 0 {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, within)
					defer stop()
				}
				go func() { _, _ = q.Acquire(ctx, outbound.Cost{1}) }()
				synctest.Wait()
			}
			if n := q.Len(); n < 3000 {
				want = time.Duration(n) * time.Second / 10
			}
			for range 3 {
				if e, err := q.Explain(t.Context(), outbound.Cost{1}); err != nil || e.Ahead != q.Len() || (e.Wait-want-time.Second/10).Abs() > time.Second/10 {
					t.Errorf("%s: %v, %v, want %v", name, e, err, want)
				}
			}
		})
	}
}

func TestExplain_InvalidQueueIsAnError(t *testing.T) {
	var none *queue.Queue
	if _, err := none.Explain(t.Context(), outbound.Cost{1}); !errors.Is(err, outbound.ErrInvalid) {
		t.Error(err)
	}
	if _, err := queue.New(nil, queue.Config{}).Explain(t.Context(), outbound.Cost{1}); !errors.Is(err, outbound.ErrInvalid) {
		t.Error(err)
	}
}
