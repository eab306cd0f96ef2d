package queue

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// waits records what becomes of calls that arrive one by one, to find the calls that have
// waited without need.
type waits struct {
	limits []outbound.Limit
	mu     sync.Mutex
	calls  []*waited // in order of arrival
}

// waited is a call that waits records.
type waited struct {
	cost       outbound.Cost
	came, left time.Time
	went       bool // false: the call has cancelled
}

// arrive lets a call come, and returns when it waits or has gone.
func (s *waits) arrive(ctx context.Context, q *Queue, c outbound.Cost) {
	w := &waited{cost: c, came: time.Now()}
	s.calls = append(s.calls, w)
	go func() {
		p, err := q.Acquire(ctx, c)
		s.mu.Lock()
		w.left, w.went = time.Now(), err == nil
		s.mu.Unlock()
		p.Done()
	}()
	synctest.Wait()
}

// needless replays the calls that went through ideal buckets. A call could have gone as soon
// as it had come, all calls before it had gone or cancelled, and there was room beside those
// that had really gone. needless returns the sum of all waits beyond that, and the longest.
func (s *waits) needless() (sum, most time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	level := make([]float64, len(s.limits))
	var at, turn time.Time // at is the time of the levels; at turn all calls before have gone or cancelled
	for _, w := range s.calls {
		if turn = later(turn, w.came); !w.went {
			turn = later(turn, w.left)
			continue
		}
		earliest := turn
		for i, l := range s.limits {
			if n := w.cost[l.Unit]; n > 0 && !at.IsZero() {
				earliest = later(earliest, at.Add(time.Duration((level[i]+n-l.Capacity)/l.LeakRate*1e9)))
			}
		}
		d := w.left.Sub(earliest)
		sum, most = sum+max(0, d), max(most, d)
		for i, l := range s.limits {
			if !at.IsZero() {
				level[i] = max(0, level[i]-l.LeakRate*w.left.Sub(at).Seconds())
			}
			level[i] += w.cost[l.Unit]
		}
		at, turn = w.left, later(turn, w.left)
	}
	return sum, most
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Calls cancel one by one or many at once, whatever they cost. The calls behind wait no
// longer than if those had never come.
func TestNobodyWaitsForCallsThatCancel(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 10
	}
	var sum time.Duration
	var calls, cancelled uint64
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			rate := []float64{0.5, 20, 500}[seed%3]
			s := &waits{limits: []outbound.Limit{
				{Capacity: 2, LeakRate: rate, Name: "calls"},
				{Capacity: 10, LeakRate: 3 * rate, Unit: 1, Name: "tokens"},
			}}
			b := bucket(t, s.limits...)
			if seed%2 == 1 {
				b = shared(t, store.NewMemory(), s.limits...)
			}
			q := New(b, Config{})
			unit := float64(time.Second) / rate
			some := func(units float64) time.Duration { return 1 + time.Duration(units*unit*rnd.ExpFloat64()) }
			parent, cancelAll := context.WithCancel(bg)
			for range 1000 {
				ctx, cancel := context.WithCancel(parent)
				if rnd.IntN(5) < 3 {
					time.AfterFunc(some(10), cancel)
				} else {
					defer cancel()
				}
				if rnd.IntN(100) == 0 {
					time.AfterFunc(some(5), cancelAll)
					parent, cancelAll = context.WithCancel(bg)
				}
				s.arrive(ctx, q, outbound.Cost{1, float64(rnd.IntN(8))})
				time.Sleep(some(0.5))
			}
			pass(10 * time.Hour)
			cancelAll()
			needless, most := s.needless()
			if sum += needless; most > 10*time.Microsecond {
				t.Errorf("seed %d: %v of needless waits, up to %v", seed, needless, most)
			}
			cancelled += q.Stats().Cancelled
			calls += 1000
		})
	}
	if sum > 10*time.Millisecond || cancelled < calls*2/5 {
		t.Errorf("%v of needless waits, %d of %d calls cancelled", sum, cancelled, calls)
	} else {
		t.Logf("%v of needless waits, %d of %d calls cancelled", sum, cancelled, calls)
	}
}
