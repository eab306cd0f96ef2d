package engine_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// hungEngine returns an engine whose store hangs until free is called. The calls that go meanwhile
// go in order, and free waits for their answers.
func hungEngine(c *carrier) (e *engine.Engine, hang func(), goes func(f func()), free func()) {
	e = c.start(time.Minute)
	var wg sync.WaitGroup
	var release func()
	return e, func() { release = c.hang() }, func(f func()) {
			wg.Go(f)
			synctest.Wait()
		}, func() {
			release()
			wg.Wait()
		}
}

// Calls of a key that come while a request is under way share the next one, and each has a charge and
// a count of its own.
func TestBatch_CallsOfAKeyShareARequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCarrier()
		e, hang, _, free := hungEngine(c)
		hang()
		var wg sync.WaitGroup
		var levels sync.Map // of the bucket at each charge
		for range 1000 {
			wg.Go(func() {
				r, err := e.Update(bg, "key", book(ages, 1))
				require.NoError(t, err)
				require.Len(t, r.Charges, 1)
				_, had := levels.LoadOrStore(r.Charges[0].Y[0], true)
				require.False(t, had, "two calls have one charge")
			})
		}
		synctest.Wait()
		free()
		wg.Wait()
		require.LessOrEqual(t, c.sends, 3)
		require.InDelta(t, 1000, c.level("key"), 0.1)
		is := e.Stats()
		require.Equal(t, uint64(1000), is.Answered)
		require.Equal(t, uint64(c.sends), is.Requests.Count)
	})
}

// A trip refuses a call and delivers the reports of the call behind it, which goes with the next trip:
// its reports are not sent again.
func TestBatch_ReportOfACallThatGoesLaterIsSentOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCarrier()
		ten := store.Limit{Name: "calls", Capacity: 10, Rate: 1e-5}
		e, hang, goes, free := hungEngine(c)
		earlier := ask(t, e, book(ten, 7)).Charges[0]
		hang()
		goes(func() { require.Len(t, ask(t, e, book(ten, 0)).Charges, 1) })
		goes(func() { require.True(t, ask(t, e, book(ten, 5)).Refused) })
		goes(func() {
			op := book(ten, 1)
			op.Reports = settle(&earlier, 7.5)
			require.Len(t, ask(t, e, op).Charges, 1)
		})
		free()
		require.InDelta(t, 8.5, c.level("key"), 0.1)
	})
}

// The same, if the next trip fails or does nothing: the reports are not lost, and the caller learns
// that they need not be sent again.
func TestBatch_ReportOfACallThatFailsLaterIsNotLost(t *testing.T) {
	for name, test := range map[string]struct {
		patience time.Duration
		replaced bool
	}{"the trip fails": {time.Minute, false}, "its caller leaves": {time.Second / 2, false}, "the limits are others": {time.Minute, true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var sends atomic.Int32
				c := newCarrier()
				c.answers(func(int, *engine.Attempt) error {
					switch {
					case sends.Add(1) <= 3:
					case !test.replaced:
						return errLost
					default:
						c.memory.mu.Lock()
						defer c.memory.mu.Unlock()
						c.keys["key"].Limits = []store.Limit{{Name: "other", Capacity: 10, Rate: 1}}
					}
					return nil
				})
				e, ten := c.start(time.Second), store.Limit{Capacity: 10, Rate: 1e-6}
				ask(t, e, book(ten))
				each(3, func(i int) {
					time.Sleep(time.Duration(i) * 100 * time.Microsecond) // the rest gathers during the first one's trip
					ctx, cancel := context.WithTimeout(bg, test.patience)
					defer cancel()
					op := book(ten, []float64{8, 3, 1}[i])
					op.Number = 1
					if i == 2 {
						op.Reports = settle(&store.Charge{N: store.Units{1}}, 1)
					}
					r, err := e.Update(ctx, "key", op)
					switch {
					case i < 2:
						require.NoError(t, err)
						require.Equal(t, i == 1, r.Refused)
						return
					case test.replaced:
						require.NoError(t, err)
						require.True(t, r.Stale)
					case test.patience < time.Second:
						require.ErrorIs(t, err, context.DeadlineExceeded)
					default:
						require.ErrorIs(t, err, store.ErrUnavailable)
					}
					require.True(t, r.Reported)
				})
				time.Sleep(time.Second)
				require.NotContains(t, c.reported(), store.EventLost)
			})
		})
	}
}

// A report is lost if its caller has left and its trip is not carried out. An event says so.
func TestBatch_ReportWithoutACallerIsLost(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		c.answers(func(int, *engine.Attempt) error { return errRace })
		ctx, cancel := context.WithTimeout(bg, time.Millisecond/2) // while the trip is under way
		defer cancel()
		_, err := e.Update(ctx, "key", &store.Op{Limits: []store.Limit{ages}, Reports: settle(&store.Charge{N: store.Units{1}}, 2)})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		require.Equal(t, []store.StoreEventKind{store.EventLost}, c.reported())
	})
}

// A caller that has left may use the memory of its step again, while the step is under way.
func TestBatch_CallerThatLeftMayReuseItsMemory(t *testing.T) {
	running(t, time.Minute, func(t *testing.T, c *carrier, e *engine.Engine) {
		r := ask(t, e, book(ages, 1))
		free := c.hang()
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		op := &store.Op{Limits: []store.Limit{ages}, Reports: settle(&r.Charges[0], 3)}
		_, err := e.Update(ctx, "key", op)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		op.Reports[0].Used[0], r.Charges[0].N[0] = 1000, 500
		free()
		time.Sleep(time.Second)
		require.InDelta(t, 3, c.level("key"), 0.1)
	})
}

// A look gets the limits of the time at which it came, also if a later caller sets others.
func TestBatch_LookGetsNoLimitsOfALaterCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, hang, goes, free := hungEngine(newCarrier())
		look := func(op *store.Op) store.Reply {
			op.Limits = []store.Limit{ages}
			return ask(t, e, op)
		}
		require.Equal(t, int64(1), ask(t, e, book(ages, 1)).Number)
		hang()
		goes(func() { ask(t, e, book(ages, 1)) })
		goes(func() { require.Equal(t, int64(1), look(&store.Op{Number: 1}).Number) })
		lower := []store.Limit{{Name: "calls", Capacity: 1, Rate: 1}}
		goes(func() {
			require.Equal(t, int64(2), look(&store.Op{Number: 1, Action: store.Replace, Replacement: lower}).Number)
		})
		goes(func() {
			r := look(&store.Op{Number: 1})
			require.Equal(t, int64(2), r.Number)
			require.Equal(t, lower, r.Limits)
		})
		goes(func() { require.Equal(t, lower, ask(t, e, book(ages, 1)).Limits, "it knows no number") })
		free()
	})
}

// For a second the engine repeats a refusal from memory, with the rest of its wait.
func TestRefusal_IsRepeatedFromMemory(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		small := store.Limit{Name: "calls", Capacity: 1, Rate: 1. / 60}
		require.False(t, ask(t, e, book(small, 1)).Refused)
		require.True(t, ask(t, e, book(small, 1)).Refused)
		for i := range 100 {
			r := ask(t, e, book(small, 1))
			require.True(t, r.Refused)
			require.Equal(t, time.Minute-time.Duration(i)*time.Millisecond, r.Wait)
			time.Sleep(time.Millisecond)
		}
		is := e.Stats()
		require.Equal(t, []uint64{2, 2, 100}, []uint64{is.Requests.Count, is.Answered, is.Remembered})
		time.Sleep(time.Second)
		require.True(t, ask(t, e, book(small, 1)).Refused)
		require.Equal(t, 3, c.sends, "another process may have returned something")
	})
}

// A refusal from memory is that of the call's own cost.
func TestRefusal_FromMemoryIsThatOfItsCost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCarrier()
		e, ten := c.start(time.Minute), store.Limit{Name: "calls", Capacity: 10, Rate: 1}
		require.False(t, ask(t, e, book(ten, 8)).Refused)
		require.Equal(t, time.Second, ask(t, e, book(ten, 3)).Wait)
		sends := c.sends
		time.Sleep(time.Second / 4)
		require.Equal(t, 3*time.Second-time.Second/4, ask(t, e, book(ten, 5)).Wait)
		require.Equal(t, time.Second-time.Second/4, ask(t, e, book(ten, 3)).Wait)
		require.Equal(t, sends, c.sends)
	})
}

// A reply does not have the calls in a window. So of calls that go together, each whose wait the
// reply does not show goes again, and gets its own.
func TestRefusal_OfAWindowHasEachCallsOwnWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		window := store.Limit{Kind: store.Window, Capacity: 10, Rate: 1, Window: 10 * time.Second}
		e, hang, goes, free := hungEngine(newCarrier())
		for i, n := range []float64{2, 3, 5} {
			if i > 0 {
				time.Sleep(3 * time.Second)
			}
			require.False(t, ask(t, e, book(window, n)).Refused)
		}
		hang()
		goes(func() { require.True(t, ask(t, e, book(window, 9)).Refused) }) // goes alone
		// A call that asks for more than a refused call before it would get that call's wait, which is less.
		for _, c := range []struct{ units, wait float64 }{{10, 10}, {4, 7}, {1, 4}} {
			goes(func() {
				r := ask(t, e, book(window, c.units))
				require.True(t, r.Refused)
				require.InDelta(t, c.wait, r.Wait.Seconds(), 0.01, "%v units", c.units)
			})
		}
		free()
	})
}
