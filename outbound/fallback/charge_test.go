package fallback_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// toll is a store that, while shut, stops each charge until it opens.
type toll struct {
	leak.Store
	shut atomic.Bool
	open chan struct{} // closed to let the charges pass
	kept chan struct{} // gets a value for each charge that the toll stops
}

func newToll(s leak.Store) *toll {
	return &toll{Store: s, open: make(chan struct{}), kept: make(chan struct{}, 10)}
}

func (s *toll) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if op.Action == leak.Meter && s.shut.Load() {
		s.kept <- struct{}{}
		<-s.open
	}
	return s.Store.Update(ctx, key, op)
}

// outage has the buckets spend 20 units each without the store, brings the store back, and
// returns when the toll stops the first charge.
func (w *worker) outage(s *toll, buckets ...*outbound.Bucket) {
	w.Helper()
	w.set(true)
	w.take(outbound.Cost{1})
	for _, b := range buckets {
		_, _ = b.State(background)
	}
	time.Sleep(3 * time.Hour)
	for range 20 {
		for _, b := range buckets {
			if _, err := b.Acquire(background, outbound.Cost{1}); err != nil {
				w.Fatal(err)
			}
		}
	}
	s.shut.Store(true)
	w.set(false)
	ended, end := context.WithCancel(background)
	defer end()
	go func() {
		for ended.Err() == nil {
			_, _ = w.b.State(ended)
			time.Sleep(100 * time.Millisecond)
		}
	}()
	<-s.kept
}

func (w *worker) other() *outbound.Bucket {
	return outbound.Must(outbound.NewSharedBucket(w.f, "other", slow))
}

func TestUnitsThatAreSpentDuringAChargeAreChargedToo(t *testing.T) {
	for _, passes := range []time.Duration{0, time.Minute} { // after the store is back for the second time
		synctest.Test(t, func(t *testing.T) {
			m := leak.NewMemory()
			s := newToll(m)
			w := newWorker(t, s, &fallback.Store{Share: 0.5}, slow)
			other := w.other()
			w.outage(s, w.b)
			w.set(true)
			_, _ = other.Acquire(background, outbound.Cost{1})
			time.Sleep(3 * time.Hour)
			for range 15 {
				if _, err := w.b.Acquire(background, outbound.Cost{1}); err != nil {
					t.Fatal(err)
				}
			}
			w.set(false)
			if passes == 0 {
				close(s.open)
			}
			_, _ = other.State(background)
			time.Sleep(time.Minute)
			if passes > 0 {
				close(s.open)
			}
			w.reconnect()
			direct := outbound.Must(outbound.NewSharedBucket(m, "key", slow))
			if s, err := direct.State(background); err != nil || math.Abs(s.Level-35) > 1 {
				t.Errorf("level %v, %v; want the 20 and the 15 that were spent", s.Level, err)
			}
		})
	}
}

func TestACallThatWaitsForAChargeCanGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newToll(leak.NewMemory())
		w := newWorker(t, s, &fallback.Store{Share: 0.5}, slow)
		w.outage(s, w.b, w.other()) // the toll stops the charge of the first, so the second waits
		for _, b := range []*outbound.Bucket{w.b, w.other()} {
			begin := time.Now()
			short, cancel := context.WithTimeout(background, 50*time.Millisecond)
			_, err := b.Acquire(short, outbound.Cost{1})
			cancel()
			if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took != 50*time.Millisecond {
				t.Errorf("after %v: %v", took, err)
			}
		}
		close(s.open)
		w.level(20)
	})
}

// A worker cannot know what the others have used between two outages.
func TestAShareThatWasNotChargedBeginsFullAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newToll(leak.NewMemory())
		w := newWorker(t, s, &fallback.Store{Share: 0.5}, slow)
		other := w.other()
		w.outage(s, w.b)
		time.Sleep(time.Hour)
		w.set(true)
		_, _ = other.State(background)
		if n := w.take(outbound.Cost{1}); n != 0 {
			t.Errorf("%d went at the second switch", n)
		}
		// Another worker holds the key, and the reply to the charge tells of it.
		if err := outbound.Must(outbound.NewSharedBucket(s.Store, "key", slow)).Hold(background, time.Hour); err != nil {
			t.Fatal(err)
		}
		close(s.open)
		synctest.Wait()
		if s, err := w.b.State(background); err != nil || s.HeldFor != time.Hour {
			t.Errorf("held for %v, %v", s.HeldFor, err)
		}
		w.reconnect()
	})
}

// This holds for all limits by which a call may count: those of another bucket of this
// process, or those by which the key counted before others were set.
func TestAShareThatWasNotChargedBeginsFullAgainUnderEveryLimit(t *testing.T) {
	for _, set := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newToll(leak.NewMemory())
			w := newWorker(t, s, &fallback.Store{Share: 0.5}, slow)
			named := slow
			named.Name = "named"
			buckets := []*outbound.Bucket{outbound.Must(outbound.NewSharedBucket(w.f, "key", named)), w.b}
			w.outage(s, buckets...)
			if set {
				direct := outbound.Must(outbound.NewSharedBucket(s.Store, "key", slow))
				if err := direct.SetLimits(background, outbound.Limit{Capacity: 60, LeakRate: 0.01}); err != nil {
					t.Fatal(err)
				}
			}
			w.set(true)
			_, _ = w.other().State(background)
			close(s.open)
			synctest.Wait()
			for i, b := range buckets {
				if _, err := b.Acquire(background, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
					t.Errorf("bucket %d, limits set %v: %v", i, set, err)
				}
			}
			w.reconnect()
		})
	}
}

func TestAHoldThatWasReportedOnReturnOutlastsTheNextOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, slow)
		other := w.other()
		w.set(true)
		w.take(outbound.Cost{1})
		if err := w.b.Hold(background, time.Hour); err != nil {
			t.Fatal(err)
		}
		w.set(false)
		for range 6 {
			_, _ = other.State(background)
			time.Sleep(time.Second)
		}
		w.set(true)
		if s, err := w.b.State(background); err != nil || s.HeldFor == 0 {
			t.Errorf("held for %v, %v", s.HeldFor, err)
		}
	})
}

// cuttable is a store that fails once it is cut off.
type cuttable struct {
	leak.Store
	cut atomic.Bool
}

func (m *cuttable) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if !m.cut.Load() {
		return m.Store.Update(ctx, key, op)
	}
	return leak.Reply{}, errCut
}

func TestCostsBeyondACallsCostCountThoughTheirReportFindsTheStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		f := &fallback.Store{Store: &cuttable{Store: m}, Share: 0.5}
		b := outbound.Must(outbound.NewSharedBucket(f, "key", slow))
		p, err := b.Acquire(background, outbound.Cost{10})
		if err != nil {
			t.Fatal(err)
		}
		f.Store.(*cuttable).cut.Store(true)
		p.Settle(outbound.Cost{40})
		if s, err := b.State(background); err != nil || math.Abs(s.Level-130) > 1e-5 { // the others' shares are full
			t.Errorf("level %v, %v; want 130", s.Level, err)
		}
	})
}
