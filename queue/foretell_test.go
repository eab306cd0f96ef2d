package queue_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/queue"
)

// told is what a queue has said to a call, and when.
type told struct {
	wait, retry time.Duration
	err         error
}

// asked lets the calls come to a queue. The call patient has no MaxWait; below 0 none has that luck.
func asked(t *testing.T, of func() *outbound.Bucket, all []arrival, most time.Duration, patient int) []told {
	said := make([]told, len(all))
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour - 5*time.Second)
		q := queue.New(of(), queue.Config{})
		run(all, func(ctx context.Context, i int) {
			came := time.Now()
			ctx, cancel := context.WithDeadline(ctx, came.Add(most))
			defer cancel()
			if i == patient {
				ctx = context.Background()
			}
			p, err := q.Acquire(ctx, all[i].cost)
			said[i] = told{wait: time.Since(came), err: err}
			var full *outbound.ThrottledError
			if errors.As(err, &full) {
				said[i].retry = full.RetryAfter
			}
			p.Done()
		})
	})
	return said
}

// Calls that cannot make it do not stand in line, where they would keep others out. So with one window
// a call waits or is refused at once, and nobody is refused who would have gone in time.
func TestWhoIsRefusedForAWindowIsRefusedAtOnce(t *testing.T) {
	const most = 5 * time.Second
	const window = 4 * time.Second
	limit := outbound.Window(40, window)
	of := func() *outbound.Bucket { return outbound.Must(outbound.NewBucket("key", limit)) }
	all := arrivals(6, 600, false)
	refused := 0
	for i, s := range asked(t, of, all, most, -1) {
		switch {
		case s.err == nil:
		case s.wait > 0 || s.retry <= most || s.retry > most+2*window:
			t.Errorf("call %d was refused after %v: %v", i, s.wait, s.err)
		default:
			refused++
		}
	}
	if refused < 100 {
		t.Errorf("only %d were refused", refused)
	}
}

// Whatever the limits are, a call that is refused for its MaxWait would not have gone within it, and what
// it is told is no more than it would have waited.
func TestNobodyIsRefusedWhoWouldHaveGoneInTime(t *testing.T) {
	var refused, late, twins, exact [2]int // in memory, shared
	for _, seed := range []uint64{1, 2, 7, 11, 14, 18, 1122, 1237} {
		r := rand.New(rand.NewPCG(seed, 77))
		kinds := []outbound.Limit{
			outbound.Window(float64(8+r.IntN(40)), time.Duration(1+r.IntN(5))*time.Second).Of(0, "moving"),
			outbound.FixedWindow(float64(8+r.IntN(40)), time.Duration(1+r.IntN(5))*time.Second).Of(0, "fixed"),
			outbound.Limit{Capacity: float64(3 + r.IntN(9)), LeakRate: float64(8 + r.IntN(9))}.Of(0, "leaky"),
			outbound.Hourly(float64(40+r.IntN(80))).Of(0, "hour"),
		}
		r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		kinds = kinds[:1+r.IntN(3)]
		all, most := arrivals(seed, 120, true), time.Duration(1+r.IntN(6))*time.Second
		for which, shared := range []bool{false, true} {
			of := func() *outbound.Bucket {
				if shared {
					return outbound.Must(outbound.NewSharedBucket(leak.NewMemory(), "key", kinds...))
				}
				return outbound.Must(outbound.NewBucket("key", kinds...))
			}
			begun := twins[which]
			for i, s := range asked(t, of, all, most, -1) {
				if s.err == nil {
					continue
				}
				refused[which]++
				if s.wait > 0 {
					late[which]++
				}
				if s.wait > 0 || all[i].within > 0 || twins[which] == begun+5 {
					continue
				}
				twins[which]++
				twin := asked(t, of, all, most, i)[i]
				if (twin.wait - s.retry).Abs() <= 20*time.Microsecond {
					exact[which]++
				}
				if twin.err == nil && (twin.wait <= most || s.retry > twin.wait) {
					t.Errorf("seed %d, %v, shared %v, call %d after %v with %v: told %v, would have waited %v", seed, kinds, shared, i, all[i].at, most, s.retry, twin.wait)
				}
			}
		}
	}
	t.Logf("%d refused, %d of them late; of %d twins %d were told exactly", refused, late, twins, exact)
	if late[0] > 0 || exact[0] < twins[0] || twins[0] < 25 || twins[1] < 10 {
		t.Errorf("in this process a forecast is exact: %d refused, %d of them late; of %d twins %d were told exactly", refused, late, twins, exact)
	}
}

// A call that cancels, or costs less than it was to, makes room for one that comes then.
func TestWhoComesAfterACancelIsNotRefusedForIt(t *testing.T) {
	for name, calls := range map[string]func(q *queue.Queue, p outbound.Permit, cancel func()){
		"a cancel": func(_ *queue.Queue, _ outbound.Permit, cancel func()) { cancel() },
		"a settle": func(_ *queue.Queue, p outbound.Permit, _ func()) { p.Settle(outbound.Cost{4}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			q := queue.New(outbound.Must(outbound.NewBucket("key", outbound.Window(10, time.Minute))), queue.Config{MaxWait: 90 * time.Second})
			p, err := q.Acquire(t.Context(), outbound.Cost{10})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			for _, c := range []struct {
				ctx  context.Context
				cost float64
			}{{t.Context(), 5}, {ctx, 1}, {t.Context(), 4}} {
				go func() { _, _ = q.Acquire(c.ctx, outbound.Cost{c.cost}) }()
				synctest.Wait()
			}
			if _, err := q.Acquire(t.Context(), outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
				t.Errorf("%s: with no room in the next window: %v", name, err)
			}
			calls(q, p, cancel)
			synctest.Wait()
			if _, err := q.Acquire(t.Context(), outbound.Cost{1}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
		})
	}
}
