package engine_test

import (
	"context"
	crand "crypto/rand"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// ages is a limit so slow that nothing leaks from it during a test.
var ages = []store.Limit{{Name: "calls", Capacity: 1e4, Rate: 1e-5}}

// calls asks for n calls of one unit, now.
func calls(n int) *store.Op {
	op := &store.Op{Limits: ages, Action: store.Book}
	for range n {
		op.Costs = append(op.Costs, store.Units{1})
	}
	return op
}

// bubble runs a test in virtual time, and then gives the engine's idle goroutines time to
// end.
func bubble(t *testing.T, f func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Minute)
		f(t)
	})
}

// each runs work in n goroutines, and waits for them.
func each(n int, work func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { work(i) })
	}
	wg.Wait()
}

// kinds are the kinds of stores. Each entry makes a store, and returns how to make a
// carrier for one more worker of it, and how to read the level of a key.
var kinds = map[string]func() (worker func() engine.Carrier, level func() float64){
	"map": func() (func() engine.Carrier, func() float64) {
		s := newShelf()
		return func() engine.Carrier { return &porter{s} }, func() float64 { return s.level("key") }
	},
	"rows": func() (func() engine.Carrier, func() float64) {
		rows := newTable()
		return func() engine.Carrier { return rowCarrier{rows, crand.Text()} },
			func() float64 { return rows.rows["key"].bucket().State.Level[0] }
	},
}

func TestATripIsMadeExactlyOnceOverABadLine(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				bubble(t, func(t *testing.T) {
					carrier, level := kind()
					seed := dice(t).Uint64()
					each(3, func(i int) {
						line := &badLine{Carrier: carrier(), lost: 0.2, unheard: 0.2, repeated: 0.3, delay: 10 * time.Millisecond}
						line.dice = rand.New(rand.NewPCG(seed, uint64(i)))
						e := engine.New(engine.Config{Carrier: line, Timeout: time.Minute})
						each(4, func(i int) {
							for range 20 {
								r, err := e.Update(context.Background(), "key", calls(1+i%2))
								if err != nil || len(r.Charges) != 1+i%2 {
									t.Errorf("got %d places and %v", len(r.Charges), err)
								}
							}
						})
						line.wait()
					})
					require.InDelta(t, 3*4*20*1.5, level(), 0.1)
				})
			}
		})
	}
}

func TestBookingsOfCallersWhoHaveGoneComeBack(t *testing.T) {
	unclaimed, stuck := 0., 0. // booked calls that nobody made, and those of them that did not come back
	for range 20 {
		bubble(t, func(t *testing.T) {
			s := newShelf()
			line := &badLine{Carrier: &porter{s}, dice: dice(t), lost: 0.1, unheard: 0.1, delay: 10 * time.Millisecond}
			e := engine.New(engine.Config{Carrier: line, Timeout: time.Minute})
			var got atomic.Int64
			each(8, func(int) {
				for range 20 {
					ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
					r, _ := e.Update(ctx, "key", calls(1))
					got.Add(int64(len(r.Charges)))
					cancel()
				}
			})
			time.Sleep(time.Minute)
			line.wait()
			unclaimed += s.calls() - float64(got.Load())
			stuck += s.level("key") - float64(got.Load())
			require.GreaterOrEqual(t, s.level("key"), float64(got.Load())-0.1)
		})
	}
	require.Greater(t, unclaimed, 100.)
	require.Less(t, stuck, 0.2*unclaimed, "more than could be others' by now: see State.Settle")
}

// hanging is a carrier that hangs until the test lets it go, whatever its context.
type hanging struct {
	engine.Carrier
	mu    sync.Mutex
	until chan struct{}
	sent  int
}

func (h *hanging) hang() (free func()) {
	until := make(chan struct{})
	h.set(until)
	return func() {
		h.set(nil)
		close(until)
	}
}

// set has what is sent from now on hang until until is closed.
func (h *hanging) set(until chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = until
}

func (h *hanging) Send(ctx context.Context, todo []engine.Attempt) {
	h.mu.Lock()
	h.sent++
	until := h.until
	h.mu.Unlock()
	if until != nil {
		<-until
	}
	h.Carrier.Send(ctx, todo)
}

func TestEveryOperationEndsInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		h := &hanging{Carrier: &porter{s}}
		var kinds []store.StoreEventKind
		e := engine.New(engine.Config{
			Carrier: h, Timeout: time.Second, Observe: func(ev store.StoreEvent) { kinds = append(kinds, ev.Kind) },
		})
		free := h.hang()
		start := time.Now()
		each(100, func(int) {
			_, err := e.Update(context.Background(), "key", calls(1))
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.LessOrEqual(t, time.Since(start), time.Second)
		})
		start = time.Now()
		_, err := e.Update(context.Background(), "key", calls(1))
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.Zero(t, time.Since(start), "it is known to be away")
		free()
		time.Sleep(time.Minute)
		_, err = e.Update(context.Background(), "key", calls(1))
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, []store.StoreEventKind{store.EventDown, store.EventUp}, kinds)
	})
}

// first is a carrier that holds the attempts at the first trip until the test lets them go.
type first struct {
	engine.Carrier
	free chan struct{}
}

func (f *first) Send(ctx context.Context, todo []engine.Attempt) {
	if todo[0].Seq == 1 {
		<-f.free
	}
	f.Carrier.Send(ctx, todo)
}

func TestATripThatWasGivenUpIsNotCarriedOutLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		f := &first{&porter{s}, make(chan struct{})}
		e := engine.New(engine.Config{Carrier: f, Timeout: time.Second})
		_, err := e.Update(context.Background(), "key", calls(1))
		require.ErrorIs(t, err, store.ErrUnavailable)
		for _, key := range []string{"another", "key"} { // after the first the server is back
			for err = store.ErrUnavailable; err != nil; time.Sleep(time.Second) {
				_, err = e.Update(context.Background(), key, calls(0))
			}
		}
		close(f.free)
		time.Sleep(time.Second)
		require.Zero(t, s.calls())
		require.Zero(t, s.level("key"))
	})
}

// The first attempt at a trip arrives after the second, which the store has refused. What it books
// then comes back.
func TestAnAttemptThatIsCarriedOutAfterARefusalIsReturned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		s.bare = true
		h := &hanging{Carrier: &porter{s}}
		e := engine.New(engine.Config{Carrier: h, Timeout: 4 * time.Second})
		ask := func() store.Reply {
			op := calls(1)
			op.Limits = []store.Limit{{Name: "calls", Capacity: 1, Rate: 0.2}}
			r, err := e.Update(context.Background(), "key", op)
			require.NoError(t, err)
			return r
		}
		require.Len(t, ask().Charges, 1)
		free := h.hang()
		time.AfterFunc(500*time.Millisecond, func() { h.set(nil) }) // for the second attempt
		require.True(t, ask().Refused)
		time.Sleep(5 * time.Second)
		free()
		time.Sleep(time.Second)
		require.Equal(t, 2., s.calls())
		require.Less(t, s.level("key"), 0.1)
	})
}

// A store that has an older copy of a key, or none, has lost data. That is reported once.
func TestALossOfDataIsReportedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		var told []store.StoreEvent
		e := s.worker(engine.Config{Name: "shelf", Observe: func(ev store.StoreEvent) { told = append(told, ev) }})
		ask := func(n int) []store.StoreEvent {
			for range n {
				_, err := e.Update(context.Background(), "key", calls(1))
				require.NoError(t, err)
			}
			synctest.Wait()
			return told
		}
		require.Empty(t, ask(1))
		older := *s.keys["key"]
		older.Stored, older.last = older.Stored.Clone(), maps.Clone(older.last)
		require.Empty(t, ask(2))
		s.keys["key"] = &older
		require.Len(t, ask(3), 1)
		require.ErrorContains(t, told[0].Err, "shelf: data loss: the latest charges are gone")
		time.Sleep(2 * time.Minute)
		delete(s.keys, "key")
		require.Len(t, ask(3), 2)
		require.ErrorContains(t, told[1].Err, "the bucket starts empty")
		require.Equal(t, store.EventDataLoss, told[1].Kind)
		time.Sleep(2 * time.Hour) // for longer than the shelf keeps its key
		delete(s.keys, "key")
		require.Len(t, ask(1), 2)
	})
}

func TestCallersOfAKeyGoTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		h := &hanging{Carrier: &porter{s}}
		e := engine.New(engine.Config{Carrier: h, Timeout: time.Second})
		free := h.hang()
		var wg sync.WaitGroup
		var places sync.Map // by the level of the bucket at the place
		for range 1000 {
			wg.Go(func() {
				r, err := e.Update(context.Background(), "key", calls(1))
				require.NoError(t, err)
				require.Len(t, r.Charges, 1)
				_, had := places.LoadOrStore(r.Charges[0].Y[0], true)
				require.False(t, had, "two callers have one place")
			})
		}
		synctest.Wait()
		free()
		wg.Wait()
		require.LessOrEqual(t, h.sent, 3)
		require.InDelta(t, 1000, s.level("key"), 0.1)
	})
}

func TestARefusalIsRepeatedWithoutATrip(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		h := &hanging{Carrier: &porter{s}}
		e := engine.New(engine.Config{Carrier: h, Timeout: time.Second})
		small := []store.Limit{{Name: "calls", Capacity: 1, Rate: 1. / 60}}
		ask := func() store.Reply {
			op := calls(1)
			op.Limits = small
			r, err := e.Update(context.Background(), "key", op)
			require.NoError(t, err)
			return r
		}
		require.False(t, ask().Refused)
		require.True(t, ask().Refused)
		h.sent = 0
		for i := range 100 {
			r := ask()
			require.True(t, r.Refused)
			require.Equal(t, time.Minute-time.Duration(i)*time.Millisecond, r.Wait)
			time.Sleep(time.Millisecond)
		}
		require.Zero(t, h.sent)
		time.Sleep(time.Second)
		require.True(t, ask().Refused)
		require.Equal(t, 1, h.sent, "others may have given something back")
	})
}

// settle returns a report that the call of a charge has cost used.
func settle(c *store.Charge, used float64) []store.Report {
	return []store.Report{{Kind: store.Settled, Charge: c, Used: store.Units{used}}}
}

func TestAReportGoesOnceThoughItsCallGoesWithTheNextTrip(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		h := &hanging{Carrier: &porter{s}}
		e := engine.New(engine.Config{Carrier: h, Timeout: time.Minute})
		ask := func(n float64, reports []store.Report) store.Reply {
			op := calls(1)
			op.Limits, op.Costs[0][0], op.Reports = []store.Limit{{Name: "calls", Capacity: 10, Rate: 1e-5}}, n, reports
			r, err := e.Update(context.Background(), "key", op)
			require.NoError(t, err)
			return r
		}
		earlier := ask(7, nil).Charges[0]
		free := h.hang()
		var wg sync.WaitGroup
		wg.Go(func() { require.Len(t, ask(0, nil).Charges, 1) })
		synctest.Wait()
		wg.Go(func() { require.True(t, ask(5, nil).Refused) })
		synctest.Wait()
		wg.Go(func() { require.Len(t, ask(1, settle(&earlier, 7.5)).Charges, 1) })
		synctest.Wait()
		free()
		wg.Wait()
		require.InDelta(t, 8.5, s.level("key"), 0.1)
	})
}

func TestACallerWhoHasGoneMayUseItsMemoryAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		h := &hanging{Carrier: &porter{s}}
		e := engine.New(engine.Config{Carrier: h, Timeout: time.Minute})
		r, err := e.Update(context.Background(), "key", calls(1))
		require.NoError(t, err)
		free := h.hang()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		op := &store.Op{Limits: ages, Reports: settle(&r.Charges[0], 3)}
		_, err = e.Update(ctx, "key", op)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		op.Reports[0].Used[0], r.Charges[0].N[0] = 1000, 500
		free()
		time.Sleep(time.Second)
		require.InDelta(t, 3, s.level("key"), 0.1)
	})
}

func TestALookDoesNotGetTheLimitsThatAnotherCallerSets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &hanging{Carrier: &porter{newShelf()}}
		e := engine.New(engine.Config{Carrier: h, Timeout: time.Minute})
		ask := func(op *store.Op) store.Reply {
			op.Limits = ages
			r, err := e.Update(context.Background(), "key", op)
			require.NoError(t, err)
			return r
		}
		require.Equal(t, int64(1), ask(calls(1)).Number)
		free := h.hang()
		var wg sync.WaitGroup
		wg.Go(func() { ask(calls(1)) })
		synctest.Wait()
		wg.Go(func() { require.Equal(t, int64(1), ask(&store.Op{Number: 1}).Number) })
		synctest.Wait()
		lower := []store.Limit{{Name: "calls", Capacity: 1, Rate: 1}}
		wg.Go(func() {
			require.Equal(t, int64(2), ask(&store.Op{Number: 1, Action: store.Replace, Replacement: lower}).Number)
		})
		synctest.Wait()
		wg.Go(func() {
			r := ask(&store.Op{Number: 1})
			require.Equal(t, int64(2), r.Number)
			require.Equal(t, lower, r.Limits)
		})
		synctest.Wait()
		wg.Go(func() { require.Equal(t, lower, ask(calls(1)).Limits, "it knows no number") })
		synctest.Wait()
		free()
		wg.Wait()
	})
}
