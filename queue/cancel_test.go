package queue

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Calls cancel at any time, during trips as well. The queue forgets none of the others, each
// goes by a place of its own cost, and at the end nothing is booked.
func TestQueue_CancelsForgetNoOtherCall(t *testing.T) {
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			rate := []float64{5, 20, 100}[rnd.IntN(3)]
			limit := outbound.Limit{Capacity: 10, LeakRate: 10 * rate}
			b := bucket(t, limit)
			store := &booked{Store: store.NewMemory()}
			way := rnd.IntN(30)
			if way > 0 {
				late := func(n int) time.Duration {
					k := uint64(n) * (2*seed + 1)
					return time.Duration(k%4/3*(k%41)) * ms
				}
				b = shared(t, &far{Store: store, way: time.Duration(way) * ms, jitter: 0.1, late: late}, limit)
			}
			q := New(b, Config{})
			var mu sync.Mutex
			went := 0.0
			span := func() time.Duration { return time.Duration(rnd.Float64() * 5 / rate * 1e9) }
			for range 12 {
				ctx, cancel := context.WithCancel(bg)
				cost := outbound.Cost{10}
				if rnd.IntN(4) == 0 {
					cost[0] = 5
				}
				if rnd.IntN(3) == 0 {
					time.AfterFunc(1+span(), cancel)
				} else {
					defer cancel()
				}
				time.AfterFunc(1+span()/2, func() {
					_, err := q.Acquire(ctx, cost)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						went += cost[0]
					}
				})
			}
			pass(time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if way > 0 && store.sum != went {
				t.Errorf("seed %d: calls of %v have gone, by places of %v", seed, went, store.sum)
			}
			s, err := b.State(bg)
			if stats := q.Stats(); stats.Waiting != 0 || stats.Admitted+stats.Cancelled > 12 || s.Level != 0 || err != nil {
				t.Errorf("seed %d: %+v, level %v, %v", seed, stats, s.Level, err)
			}
			if len(q.line.tickets)+len(q.line.unused) != 0 || q.line.unplaced != &q.line.end {
				t.Errorf("seed %d: %d tickets, %d to give back, rest %v", seed, len(q.line.tickets), len(q.line.unused), q.line.unplaced)
			}
			q.Close() // a call that was forgotten would wait for ever
		})
	}
}

// booked is a store that sums up the costs of the places that did not go back.
type booked struct {
	store.Store
	mu  sync.Mutex
	sum float64
}

func (s *booked) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range op.Back {
		s.sum -= c.N[0]
	}
	was := 0.0
	if op.Move != nil {
		was = op.Move.N[0]
	}
	r, err := s.Store.Update(ctx, key, op)
	for i := range r.Charges {
		s.sum += op.Costs[i][0] - was
	}
	return r, err
}

// A call's ctx may end at the instant of its place. Then the call is either cancelled, and
// has used nothing, or admitted.
func TestQueue_CancelAtTheInstantOfAdmission(t *testing.T) {
	var outcomes [2]int
	for range 1000 {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 10})
			q := New(b, Config{})
			if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(bg)
			time.AfterFunc(100*ms, cancel)
			_, err := q.Acquire(ctx, outbound.Cost{1})
			synctest.Wait()
			s, _ := b.State(bg)
			level, admitted, cancelled := 1.0, uint64(2), uint64(0)
			if err != nil {
				level, admitted, cancelled = 0, 1, 1
				outcomes[1]++
			} else {
				outcomes[0]++
			}
			if stats := q.Stats(); s.Level != level || stats.Admitted != admitted || stats.Cancelled != cancelled || err != nil && err != context.Canceled {
				t.Errorf("%v, level %v, %+v", err, s.Level, stats)
			}
		})
	}
	if outcomes[0] == 0 || outcomes[1] == 0 {
		t.Errorf("%d admitted, %d cancelled: the test proves nothing", outcomes[0], outcomes[1])
	}
}

// The first call cancels during a trip, and its place is due before the trip ends. A call that
// costs more must not use it.
func TestQueue_CancelDuringRequestGivesNoCheaperReservation(t *testing.T) {
	for way := ms; way <= 16*ms; way += 5 * ms {
		for at := 50 * ms; at < 130*ms; at += ms {
			synctest.Test(t, func(t *testing.T) {
				limit := outbound.Limit{Capacity: 10, LeakRate: 10}
				q := New(shared(t, &far{Store: store.NewMemory(), way: way}, limit), Config{})
				var h outboundtest.History
				ctx, cancel := context.WithCancel(bg)
				for i, n := range []float64{10, 1, 10} {
					of := bg
					if i == 1 {
						of = ctx
					}
					go func() {
						if _, err := q.Acquire(of, outbound.Cost{n}); err == nil {
							h.Add(time.Now(), n)
						}
					}()
					time.Sleep(time.Nanosecond)
				}
				time.Sleep(at)
				cancel()
				pass(time.Minute)
				if err := h.Check(limit.Capacity, limit.LeakRate, limit.LeakRate*0.05); err != nil || h.Len() < 2 {
					t.Errorf("%v away, cancelled after %v: %d went, %v", way, at, h.Len(), err)
				}
			})
		}
	}
}

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
func TestQueue_NoCallWaitsForCancelledOnes(t *testing.T) {
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
