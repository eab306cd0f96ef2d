package queue_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
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

// With one window, and calls that cost the same, most of those that cannot make it are refused at once.
func TestQueue_RefusesEarlyForAWindow(t *testing.T) {
	const most = 5 * time.Second
	const window = 4 * time.Second
	limit := outbound.Window(40, window)
	of := func() *outbound.Bucket { return outbound.Must(outbound.NewBucket("key", limit)) }
	all := arrivals(6, 600, false)
	refused, late := 0, 0
	for i, s := range asked(t, of, all, most, -1) {
		switch {
		case s.err == nil:
		case s.wait > 0 && s.wait <= most:
			late++
		case s.wait > 0 || s.retry <= most || s.retry > most+2*window:
			t.Errorf("call %d was refused after %v: %v", i, s.wait, s.err)
		default:
			refused++
		}
	}
	if refused < 100 || late > refused/2 {
		t.Errorf("%d were refused at once, and %d later", refused, late)
	}
}

// outcome is what a queue has answered, when units came back, and what was charged in the end.
type outcome struct {
	told
	came time.Duration
}

// trial lets calls come to a queue for a bucket with these limits. Some of them cancel, some settle, and there are holds.
// The call patient has no deadline and no MaxWait; below 0 none has that luck.
func trial(t *testing.T, seed uint64, of func() *outbound.Bucket, rough bool, patient int) (said []outcome, back []time.Duration) {
	all := arrivals(seed, 100, true)
	said = make([]outcome, len(all))
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 78))
		most := time.Duration(1+r.IntN(6)) * time.Second
		time.Sleep(time.Hour - 5*time.Second)
		b, begin, used := of(), time.Now(), 0.0
		q := queue.New(b, queue.Config{})
		var mu sync.Mutex
		comes := func() { // units come back
			mu.Lock()
			back = append(back, time.Since(begin))
			mu.Unlock()
		}
		for at := time.Second; rough && at < 7*time.Second; at += time.Duration(1 + r.Int64N(int64(3*time.Second))) {
			time.AfterFunc(at, func() { _ = b.Hold(context.Background(), 300*time.Millisecond) })
		}
		cancels, settles := make([]time.Duration, len(all)), make([]float64, len(all))
		for i := range all {
			if settles[i] = 1; !rough {
				continue
			}
			if r.IntN(10) == 0 {
				cancels[i] = 1 + time.Duration(r.IntN(int(2*time.Second)))
			}
			if r.IntN(10) == 0 {
				settles[i] = 2 * r.Float64()
			}
		}
		run(all, func(ctx context.Context, i int) {
			came := time.Now()
			said[i].came = came.Sub(begin)
			ctx, cancel := context.WithDeadline(ctx, came.Add(most))
			defer cancel()
			if i == patient {
				ctx = context.Background()
			} else if cancels[i] > 0 {
				var stop context.CancelFunc
				ctx, stop = context.WithCancel(ctx)
				defer stop()
				defer time.AfterFunc(cancels[i], stop).Stop()
			}
			p, err := q.Acquire(ctx, all[i].cost)
			said[i].wait, said[i].err = time.Since(came), err
			var full *outbound.ThrottledError
			switch {
			case errors.As(err, &full):
				said[i].retry = full.RetryAfter
				within := most
				if all[i].within > 0 {
					within = min(most, all[i].within)
				}
				if said[i].wait > within || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("seed %d, call %d: refused after %v of %v: %v", seed, i, said[i].wait, within, err)
				}
			case err != nil:
				comes()
			default:
				time.Sleep(all[i].took)
				cost := all[i].cost
				if cost[0] *= settles[i]; settles[i] < 1 {
					comes()
				}
				p.Settle(cost)
				mu.Lock()
				used += cost[0]
				mu.Unlock()
			}
			p.Done()
		})
		time.Sleep(time.Second) // places that no call has used go back
		states, err := b.States(context.Background())
		if meter := states[len(states)-1]; err != nil || meter.Limit.Name == "meter" && math.Abs(meter.Level-used) > 1e-6 {
			t.Errorf("seed %d: %v charged, %v used, %v", seed, meter.Level, used, err)
		}
	})
	return said, back
}

// Nobody is refused who would have gone in time, unless units come back later of which nobody knew. All others are refused
// at their deadlines at the latest, and not charged. With one leaky limit all are refused at once, with the time that they
// would have waited.
func TestQueue_RefusesNoCallThatWouldGoInTime(t *testing.T) {
	var refused, late, twins, exact [2]int // with one leaky limit, with others
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 77))
		kinds := []outbound.Limit{
			outbound.Window(float64(8+r.IntN(40)), time.Duration(1+r.IntN(5))*time.Second).Of(0, "moving"),
			outbound.FixedWindow(float64(8+r.IntN(40)), time.Duration(1+r.IntN(5))*time.Second).Of(0, "fixed"),
			{Capacity: float64(3 + r.IntN(9)), LeakRate: float64(8 + r.IntN(9)), Name: "leaky"},
			{Capacity: float64(30 + r.IntN(30)), LeakRate: float64(5 + r.IntN(9)), Name: "slower"},
			outbound.Hourly(float64(40+r.IntN(80))).Of(0, "hour"),
		}
		which, rough := 1, r.IntN(3) > 0
		if seed%4 == 0 {
			kinds, which, rough = kinds[2:3], 0, false
		} else {
			r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
			kinds = append(kinds[:1+r.IntN(3)], outbound.Monthly(1e6, time.UTC).Of(0, "meter"))
		}
		shared := r.IntN(2) == 0
		of := func() *outbound.Bucket {
			if shared {
				return outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "key", kinds...))
			}
			return outbound.Must(outbound.NewBucket("key", kinds...))
		}
		said, back := trial(t, seed, of, rough, -1)
		tries := 0
		for i, s := range said {
			if !errors.Is(s.err, outbound.ErrThrottled) {
				continue
			}
			if refused[which]++; s.wait > 0 {
				late[which]++
			}
			if tries++; tries%12 != 1 || s.wait > 0 {
				continue
			}
			twins[which]++
			again, more := trial(t, seed, of, rough, i)
			twin := again[i]
			known := func(at time.Duration) bool { return at < s.came || at > twin.came+twin.wait }
			if slices.ContainsFunc(append(more, back...), func(at time.Duration) bool { return !known(at) }) {
				continue
			}
			if (twin.wait - s.retry).Abs() <= 20*time.Microsecond {
				exact[which]++
			}
			if twin.err == nil && s.retry > twin.wait+20*time.Microsecond {
				t.Errorf("seed %d, %v, shared %v, call %d at %v: told %v, would have waited %v", seed, kinds, shared, i, s.came, s.retry, twin.wait)
			}
		}
	}
	t.Logf("%d refused, %d of them late; of %d twins %d were told exactly", refused, late, twins, exact)
	if late[0] > 0 || exact[0] < twins[0] || twins[0] < 50 || twins[1] < 50 {
		t.Errorf("%d refused, %d of them late; of %d twins %d were told exactly", refused, late, twins, exact)
	}
}

// A call that cancels, or costs less than it was to, makes room for one that comes then.
func TestQueue_CancelRefusesNoLaterCall(t *testing.T) {
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
