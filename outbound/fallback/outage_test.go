package fallback_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// A caller that gives up during its try has found out nothing. The store stays away, and
// another call makes a try.
func TestATryThatIsGivenUpFindsOutNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{}, slow)
		var told []bool
		w.f.OnSwitch = func(away bool, _ error) { told = append(told, away) }
		w.set(true)
		if _, err := w.b.State(background); !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.hangs = time.Minute
		short, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		if _, err := w.b.State(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if _, err := w.b.State(background); !errors.Is(err, errCut) || len(told) != 1 {
			t.Errorf("%v, told %v", err, told)
		}
		w.set(false)
		time.Sleep(time.Second)
		w.level(0)
		if len(told) != 2 {
			t.Errorf("told %v", told)
		}
	})
}

func TestOneCallMakesATryAndTheOthersFailAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{}, slow)
		w.set(true)
		if _, err := w.b.State(background); !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.hangs = time.Minute
		begin, trips := time.Now(), w.count()
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := w.b.State(background); !errors.Is(err, errCut) || time.Since(begin) != time.Minute {
				t.Errorf("the try: %v after %v", err, time.Since(begin))
			}
		})
		for time.Since(begin) < 50*time.Second {
			time.Sleep(time.Second)
			asked := time.Now()
			if _, err := w.b.State(background); !errors.Is(err, errCut) || time.Since(asked) != 0 {
				t.Errorf("another call: %v after %v", err, time.Since(asked))
			}
		}
		calls.Wait()
		if n := w.count() - trips; n != 1 {
			t.Errorf("%d trips", n)
		}
	})
}

// Another worker may still have to charge what it has spent of a key that this one has not
// used.
func TestNoCallGoesFor100msAtTheReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, slow)
		other := w.other()
		back := make(chan struct{})
		w.f.OnSwitch = func(away bool, _ error) {
			if !away {
				close(back)
			}
		}
		w.set(true)
		w.take(outbound.Cost{1})
		w.set(false)
		<-back
		for _, want := range []time.Duration{100 * time.Millisecond, 0} {
			begin := time.Now()
			if _, err := other.Acquire(background, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took != want {
				t.Errorf("a call went after %v, want %v", took, want)
			}
		}
	})
}

// A bucket that was made after the limits were set learns of them without the store.
func TestABucketHearsOfLimitsThatWereSetBeforeTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, slow)
		if err := w.b.SetLimits(background, outbound.Limit{Capacity: 10, LeakRate: 1}); err != nil {
			t.Fatal(err)
		}
		w.set(true)
		late := outbound.Must(outbound.NewSharedBucket(w.f, "key", slow))
		_, _ = late.Acquire(background, outbound.Cost{1})
		time.Sleep(time.Hour)
		n := 0
		for ; n < 100; n++ {
			if _, err := late.Acquire(background, outbound.Cost{1}); err != nil {
				break
			}
		}
		if n != 5 {
			t.Errorf("%d went, want 5", n)
		}
	})
}

// A call finds the store away, and the store is back before the Store serves the call without
// it. The call gets the error: nobody would charge what it spends here.
func TestACallIsNotServedWithoutAStoreThatIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, slow)
		w.f.OnSwitch = func(away bool, _ error) {
			if away {
				w.set(false)
				time.Sleep(time.Minute)
			}
		}
		w.set(true)
		if _, err := w.b.Fillup(background, outbound.Cost{10}); !errors.Is(err, errCut) {
			t.Error(err)
		}
		w.level(0)
		if s, err := w.other().State(background); err != nil || math.Abs(s.Level) > 0 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// panicky is a store that is away, then panics once, and then serves.
type panicky struct {
	leak.Memory
	asked int
}

func (p *panicky) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	switch p.asked++; p.asked {
	case 1:
		return leak.Reply{}, leak.ErrAway
	case 2:
		panic("the store's own fault")
	}
	return p.Memory.Update(ctx, key, op)
}

func TestAStoreThatPanicsDuringATryIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fallback.Store{Store: &panicky{}}
		op := &leak.Op{Limits: []leak.Limit{{Capacity: 1, Rate: 1}}}
		var err error
		panics := 0
		ask := func() {
			defer func() {
				if recover() != nil {
					panics++
				}
			}()
			_, err = s.Update(t.Context(), "key", op)
		}
		for range 10 {
			ask()
			time.Sleep(time.Minute)
		}
		if err != nil || panics != 1 {
			t.Errorf("got %v after %d panics", err, panics)
		}
	})
}
