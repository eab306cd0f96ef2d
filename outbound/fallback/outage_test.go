package fallback

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// fleet is processes with equal shares of a limit. After a minute the first of them lose the store.
type fleet struct {
	processes, lose int
	limit           outbound.Limit
	outages         []time.Duration // for how long they lose it, and have it, and lose it again
	pause           time.Duration   // of a process, at most, so that each makes a call in each outage
	seed            uint64
}

// run returns the calls of the fleet, until three minutes after the last outage. Each process makes
// a call as soon as its bucket admits it, but pauses now and then, so that the processes learn of an
// outage and of its end at different times.
func (f fleet) run(t *testing.T) (left *outboundtest.History, begin time.Time) {
	t.Helper()
	left = new(outboundtest.History)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		memory, links := store.NewMemory(), make([]*link, f.processes)
		begin = time.Now()
		var all sync.WaitGroup
		for i := range links {
			links[i] = &link{Store: memory, slow: time.Millisecond, hangs: time.Duration(1+100*i/f.processes) * 4 * time.Millisecond}
			b := outbound.Must(outbound.NewSharedBucket(&Store{Store: links[i], Share: 1 / float64(f.processes)}, "key", f.limit))
			dice := rand.New(rand.NewPCG(f.seed, uint64(i)))
			all.Go(func() {
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				for ctx.Err() == nil {
					_, err := b.Acquire(ctx, outbound.Cost{1})
					if full, refused := errors.AsType[*outbound.ThrottledError](err); refused {
						time.Sleep(min(full.RetryAfter, time.Second))
					} else if err == nil {
						left.Add(time.Now(), 1)
					}
					if dice.IntN(40) == 0 {
						time.Sleep(time.Duration(math.Pow(dice.Float64(), 4) * float64(f.pause)))
					}
				}
			})
		}
		time.Sleep(time.Minute)
		for i, lasts := range append(f.outages, 3*time.Minute) {
			for _, l := range links[:f.lose] {
				l.set([]error{errCut, nil}[i%2])
			}
			time.Sleep(lasts)
		}
		cancel()
		all.Wait()
	})
	return left, begin
}

// units returns how many units left from one time to another, in minutes after the begin.
func units(left *outboundtest.History, begin time.Time, from, to float64) (n float64) {
	for at, u := range left.All() {
		if m := at.Sub(begin).Minutes(); from <= m && m < to {
			n += u
		}
	}
	return n
}

// check checks that the calls have kept the limit.
func (f fleet) check(left *outboundtest.History) error {
	if n, window := f.limit.Each(); f.limit == outbound.Window(n, window) {
		return left.CheckWindow(n, window)
	}
	return left.Check(f.limit.Capacity, f.limit.LeakRate, 1e-6)
}

// All processes lose the store. In the outages and in every interval around them they stay within the
// limit, and use most of it. A window admits no call until a window after the switch.
func TestStore_OutageForAllExceedsNothing(t *testing.T) {
	minute, flaps := []time.Duration{time.Minute}, []time.Duration{44 * time.Second, 44 * time.Second, 4 * time.Second, 300 * time.Millisecond, 40 * time.Second}
	for i, f := range []fleet{
		{processes: 10, outages: minute, pause: 9 * time.Second, limit: outbound.Limit{Capacity: 20, LeakRate: 20}},
		{processes: 10, outages: minute, pause: 9 * time.Second, limit: outbound.Limit{Capacity: 1200, LeakRate: 20}},
		{processes: 10, outages: minute, pause: 9 * time.Second, limit: outbound.Window(200, 10*time.Second)},
		{processes: 4, outages: flaps, pause: time.Second, limit: outbound.Limit{Capacity: 40, LeakRate: 20}},
		{processes: 4, outages: flaps, pause: time.Second, limit: outbound.Limit{Capacity: 8, LeakRate: 1}},
		{processes: 4, outages: flaps, pause: time.Second, limit: outbound.Limit{Capacity: 200, LeakRate: 5}},
	} {
		t.Run(fmt.Sprint(f.limit, f.outages), func(t *testing.T) {
			f.lose, f.seed = f.processes, uint64(i)
			left, begin := f.run(t)
			err := f.check(left)
			errorIf(t, err != nil, "%v", err)
			minute := f.limit.LeakRate * 60
			n := units(left, begin, 1, 2)
			errorIf(t, n < 0.7*minute, "%v of %v units left in the first minute of the outage", n, minute)
			n = left.Use(f.limit.Capacity, f.limit.LeakRate)
			errorIf(t, n < 0.9, "%v of the limit was used", n)
		})
	}
}

// One of ten processes loses the store: all together use at most 110 % of the limit, and nothing
// above it from the return on.
func TestStore_OutageForOneExceedsItsShare(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	for i, limit := range []outbound.Limit{{Capacity: 20, LeakRate: 20}, {Capacity: 1200, LeakRate: 20}, outbound.Window(200, 10*time.Second)} {
		t.Run(limit.String(), func(t *testing.T) {
			f := fleet{processes: 10, lose: 1, limit: limit, outages: []time.Duration{time.Minute}, pause: time.Second, seed: uint64(i)}
			left, begin := f.run(t)
			if n := units(left, begin, 1, 2); n < 1200 || n > 1320+1 {
				t.Errorf("%v units left while one process was cut off, want 1200 and its share of 120", n)
			}
			if n := units(left, begin, 2, 5); n < 3500 || n > 3600+20 {
				t.Errorf("%v units left in the three minutes after that, want 3600", n)
			}
			after := new(outboundtest.History)
			for at, n := range left.All() {
				if at.Sub(begin) > 2*time.Minute+3*time.Second {
					after.Add(at, n)
				}
			}
			err := f.check(after)
			errorIf(t, err != nil, "%v", err)
		})
	}
}

// A lease after the store's last answer each process has its share of the slots, rounded down,
// however many buckets of the key it has. When the store is available, what is in flight counts
// there.
func TestStore_SharesSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		remote, limit := &link{Store: store.NewMemory()}, outbound.InFlight(5)
		f := &Store{Store: remote, Share: 0.5}
		a, b := outbound.Must(outbound.NewSharedBucket(f, "k", limit)), outbound.Must(outbound.NewSharedBucket(f, "k", limit))
		other := outbound.Must(outbound.NewSharedBucket(remote, "k", limit))
		acquire := func(of *outbound.Bucket, want error) (p outbound.Permit) {
			t.Helper()
			p, err := of.Acquire(t.Context(), outbound.Cost{1})
			errorIf(t, !errors.Is(err, want), "a call returns %v, want %v", err, want)
			return p
		}
		first := acquire(a, nil)
		remote.set(errCut)
		for range 5 {
			acquire(b, store.ErrUnavailable)
			time.Sleep(5 * time.Second)
		}
		time.Sleep(6 * time.Second)
		second := acquire(b, nil) // a lease after the last answer
		acquire(a, outbound.ErrThrottled)
		acquire(b, outbound.ErrThrottled)
		remote.set(nil)
		time.Sleep(20 * time.Second) // no slot is granted for a third of a lease: other processes may have slots
		for range 3 {
			acquire(other, nil)
		}
		acquire(other, outbound.ErrThrottled)
		first.Done()
		second.Done()
	})
}

// No call waits for a store that is unavailable, and the memory for its keys is bounded.
func TestStore_KeysThatAreAway(t *testing.T) {
	bubble(t, "While a key is away, no call waits for the store, even if it hangs. While the key is charged, a call can give up", &Store{Share: 0.5}, limits{leaky(40, 20)}, func(t *testing.T, p *process) {
		p.hangs = 2 * time.Second
		p.cutOff()
		begin := time.Now()
		for range 1000 {
			p.must(cost(1))
			time.Sleep(time.Millisecond)
		}
		took := time.Since(begin)
		errorIf(t, took != time.Second, "1000 calls, one each millisecond, took %v", took)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := p.f.Update(ctx, p.key, &store.Op{Limits: p.limits})
		errorIf(t, !errors.Is(err, context.Canceled), "%v", err)
		p.set(nil)
		time.Sleep(3 * time.Second)
	})
	bubble(t, "Calls of further keys fail while maxKeys keys are away", &Store{Share: 0.5}, limits{leaky(2, 1)}, func(t *testing.T, p *process) {
		p.set(errCut)
		for i := range maxKeys {
			p.key = fmt.Sprint(i)
			p.must(store.Op{})
		}
		p.key = "more"
		_, err := p.do(store.Op{})
		errorIf(t, !errors.Is(err, store.ErrUnavailable), "key %d: %v", maxKeys+1, err)
		p.mend()
	})
}
