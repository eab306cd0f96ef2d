package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// line is the way to a store.
type line struct {
	store.Store
	cut atomic.Bool
}

func (l *line) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	time.Sleep(time.Millisecond)
	if l.cut.Load() {
		return store.Reply{}, fmt.Errorf("%w: connection refused", store.ErrUnavailable)
	}
	return l.Store.Update(ctx, key, op)
}

// fleet runs ten workers with a share of a tenth. Each makes a call as soon as the limit admits it.
// After a minute the first of them lose the store, for a minute. It returns the calls that left in the
// four minutes from then on.
func fleet(t *testing.T, limit outbound.Limit, lose int) (left *outboundtest.History, outage time.Time) {
	t.Helper()
	left = new(outboundtest.History)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		memory := store.NewMemory()
		var lines [10]*line
		var rest [10]atomic.Bool
		var workers sync.WaitGroup
		outage = time.Now().Add(time.Minute)
		for i := range lines {
			lines[i] = &line{Store: memory}
			b, err := outbound.NewSharedBucket(&fallback.Store{Store: lines[i], Share: 0.1}, "key", limit)
			if err != nil {
				t.Fatal(err)
			}
			workers.Go(func() {
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				if lose == len(lines) { // each learns of the outage at a time of its own
					defer time.AfterFunc(time.Until(outage), func() { rest[i].Store(true) }).Stop()
				}
				for ctx.Err() == nil {
					if rest[i].Swap(false) {
						time.Sleep(time.Duration(i) * 900 * time.Millisecond)
					}
					_, err := b.Acquire(ctx, outbound.Cost{1})
					full, refused := errors.AsType[*outbound.ThrottledError](err)
					switch {
					case err == nil:
						if time.Now().After(outage) {
							left.Add(time.Now(), 1)
						}
					case refused:
						time.Sleep(min(full.RetryAfter, time.Second))
					}
				}
			})
		}
		for _, cut := range []bool{true, false} {
			time.Sleep(time.Minute)
			for _, l := range lines[:lose] {
				l.cut.Store(cut)
			}
		}
		time.Sleep(3 * time.Minute)
		cancel()
		workers.Wait()
	})
	return left, outage
}

// units returns how many units left from one time to another, in minutes after the outage began.
func units(left *outboundtest.History, outage time.Time, from, to float64) (n float64) {
	for at, u := range left.All() {
		if m := at.Sub(outage).Minutes(); from <= m && m < to {
			n += u
		}
	}
	return n
}

var limits = map[string]outbound.Limit{
	"a second of capacity":    {Capacity: 20, LeakRate: 20},
	"a minute of capacity":    {Capacity: 1200, LeakRate: 20},
	"a window of ten seconds": outbound.Window(200, 10*time.Second),
}

// within checks that calls have kept a limit.
func within(left *outboundtest.History, limit outbound.Limit) error {
	if limit == limits["a window of ten seconds"] {
		return left.CheckWindow(200, 10*time.Second)
	}
	return left.Check(limit.Capacity, limit.LeakRate, 1e-6)
}

// All workers lose the store. In the outage and in every interval around it they stay within the limit.
func TestStore_OutageForAllExceedsNothing(t *testing.T) {
	for name, limit := range limits {
		t.Run(name, func(t *testing.T) {
			left, outage := fleet(t, limit, 10)
			if err := within(left, limit); err != nil {
				t.Error(err)
			}
			if n := units(left, outage, 0, 1); n < 900 || n > 1200 {
				t.Errorf("%v of 1200 units left in the outage", n)
			}
			if n := units(left, outage, 2, 4); n < 2300 {
				t.Errorf("%v of 2400 units left in the last two minutes", n)
			}
		})
	}
}

// One of ten workers loses the store: all together use at most 110 % of the limit, and nothing above it
// from the return on.
func TestStore_OutageForOneExceedsItsShare(t *testing.T) {
	for name, limit := range limits {
		t.Run(name, func(t *testing.T) {
			left, outage := fleet(t, limit, 1)
			if n := units(left, outage, 0, 1); n < 1200 || n > 1320+1 {
				t.Errorf("%v units left while one worker was cut off, want 1200 and its share of 120", n)
			}
			after := new(outboundtest.History)
			for at, n := range left.All() {
				if at.Sub(outage) > time.Minute+3*time.Second {
					after.Add(at, n)
				}
			}
			if err := within(after, limit); err != nil {
				t.Error(err)
			}
			if n := units(left, outage, 1, 4); n < 3500 || n > 3600+20 {
				t.Errorf("%v units left in the three minutes after that, want 3600", n)
			}
		})
	}
}

// What a worker has spent by itself is missing for the others once it has the store again.
func TestStore_OutageIsRepaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := store.NewMemory()
		cut := &line{Store: memory}
		take := func(s store.Store) (n int) {
			b, err := outbound.NewSharedBucket(s, "key", outbound.Limit{Capacity: 100, LeakRate: 0.1})
			if err != nil {
				t.Fatal(err)
			}
			for ; err == nil; n++ {
				_, err = b.Acquire(t.Context(), outbound.Cost{1})
			}
			return n - 1
		}
		cut.cut.Store(true)
		alone := &fallback.Store{Store: cut, Share: 0.1}
		if n := take(alone); n != 0 {
			t.Errorf("%d calls left at the switch", n)
		}
		time.Sleep(10 * time.Minute)
		spent := take(alone)
		cut.cut.Store(false)
		time.Sleep(3 * time.Second)
		if n := take(memory); spent < 5 || n != 100-spent {
			t.Errorf("%d calls left with the store, after %d without it, of a capacity of 100", n, spent)
		}
		if is := alone.State(); is.Unavailable {
			t.Errorf("%+v", is)
		}
	})
}
