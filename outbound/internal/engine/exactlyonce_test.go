package engine_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A store behind a line that loses and repeats requests passes the conformance test.
func TestConformance_OverABadLine(t *testing.T) {
	t.Parallel() // it waits most of the time
	c := newCarrier()
	outboundtest.TestStore(t, func(t *testing.T) store.Store {
		// The line loses no reply: a repeated reply has the state of a moment ago, and the test
		// wants the state of now.
		line := &badLine{Carrier: c.other(), dice: dice(t), lost: 0.1, repeated: 0.2, delay: time.Millisecond / 10}
		t.Cleanup(line.wait)
		return engine.New(engine.Config{Carrier: line, Timeout: time.Minute})
	})
}

// A late answer has the time of a reservation that other calls have followed long since. It is late
// because the reply before it was lost or because the line is slow. Its call must not leave next to
// theirs.
func TestTrip_LateReplyAdmitsNoMoreThanTheLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCarrier()
		var left outboundtest.History
		seed := dice(t).Uint64()
		each(4, func(i int) {
			line := &badLine{Carrier: c.other(), lost: 0.05, noReply: 0.3, delay: 10 * time.Millisecond}
			line.dice = rand.New(rand.NewPCG(seed, uint64(i)))
			e := engine.New(engine.Config{Carrier: line, Timeout: time.Minute})
			each(6, func(j int) {
				for until := time.Now().Add(20 * time.Second); time.Now().Before(until); {
					r, err := e.Update(bg, "key", book(store.Limit{Name: "calls", Capacity: 50, Rate: 50}, 1))
					// As a bucket does: a call that is late by more than the grace is returned.
					if err == nil && len(r.Charges) == 1 && time.Since(r.When) <= store.BookingGrace {
						left.Add(time.Now(), 1)
					}
					time.Sleep(time.Duration(i+j+1) * 10 * time.Millisecond)
				}
			})
			line.wait()
		})
		require.Greater(t, left.Len(), 400)
		late := 150 * time.Millisecond // the bound of a late answer, and a normal latency
		require.NoError(t, left.Check(50, 50, 50*late.Seconds()))
	})
}

// A reply that comes again has the time of the first one.
func TestTrip_RepeatedReplyHasTheTimeOfTheFirst(t *testing.T) {
	running(t, time.Minute, func(t *testing.T, c *carrier, e *engine.Engine) {
		loses := false // the next reply, and reports that after a second
		c.send = func(_ context.Context, todo []engine.Attempt) {
			time.Sleep(time.Millisecond)
			c.carry(todo)
			time.Sleep(time.Millisecond)
			if loses {
				time.Sleep(time.Second)
				loses, todo[0].Err = false, errLost
			}
		}
		for i := range 20 {
			loses = i == 10
			start := time.Now()
			r := ask(t, e, book(ages, 1))
			require.Len(t, r.Charges, 1)
			if i > 0 { // the first may take two trips
				require.WithinDuration(t, start, r.When, 3*time.Millisecond, "trip %d", i)
				require.WithinDuration(t, start, r.Received, 10*time.Millisecond, "trip %d", i)
			}
		}
	})
}

// A booking whose caller has left is returned.
func TestTrip_BookingsOfCallersThatLeftAreReturned(t *testing.T) {
	unclaimed, stuck := 0., 0. // booked calls that no caller made, and those of them that were not returned
	for range 20 {
		bubble(t, func(t *testing.T) {
			c := newCarrier()
			line := &badLine{Carrier: c.other(), dice: dice(t), lost: 0.1, noReply: 0.1, delay: 10 * time.Millisecond}
			e := engine.New(engine.Config{Carrier: line, Timeout: time.Minute})
			var got atomic.Int64
			each(8, func(int) {
				for range 20 {
					ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
					r, _ := e.Update(ctx, "key", book(ages, 1))
					got.Add(int64(len(r.Charges)))
					cancel()
				}
			})
			time.Sleep(time.Minute)
			line.wait()
			unclaimed += c.calls() - float64(got.Load())
			stuck += c.level("key") - float64(got.Load())
			require.GreaterOrEqual(t, c.level("key"), float64(got.Load())-0.1)
		})
	}
	require.Greater(t, unclaimed, 100.)
	require.Less(t, stuck, 0.2*unclaimed, "more than could be other calls' by now: see State.Settle")
}

// A trip that the engine has given up is not carried out later.
func TestTrip_GivenUpIsNotCarriedOutLater(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		free := c.late(1, true, nil)
		require.ErrorIs(t, try(e, "key"), store.ErrUnavailable)
		for _, key := range []string{"another", "key"} { // after the first the server is available again
			for err := error(store.ErrUnavailable); err != nil; time.Sleep(time.Second) {
				_, err = e.Update(bg, key, book(ages))
			}
		}
		free()
		time.Sleep(time.Second)
		require.Zero(t, c.calls())
		require.Zero(t, c.level("key"))
	})
}

// The first attempt at a trip arrives after the second, which the store has refused. What it books
// then is returned.
func TestTrip_LateAttemptAfterARefusalIsReturned(t *testing.T) {
	running(t, 4*time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		c.bare = true
		one := store.Limit{Name: "calls", Capacity: 1, Rate: 0.2}
		require.Len(t, ask(t, e, book(one, 1)).Charges, 1)
		free := c.hang()
		time.AfterFunc(500*time.Millisecond, func() { c.set(func() { c.hung = nil }) }) // for the second attempt
		require.True(t, ask(t, e, book(one, 1)).Refused)
		time.Sleep(5 * time.Second)
		free()
		time.Sleep(time.Second)
		require.Equal(t, 2., c.calls())
		require.Less(t, c.level("key"), 0.1)
	})
}

// fenced is a carrier whose keys may always go apart.
type fenced struct {
	*carrier
	always bool
}

func (f fenced) Take(a *engine.Attempt) engine.Verdict {
	v := f.carrier.Take(a)
	a.Key.Apart = f.always
	return v
}

// Nothing of an Update that has failed, or was answered otherwise, is carried out after a later one
// of its key has returned, although the server was available all the time.
func TestFence_ALaterUpdateStopsAnEarlierOne(t *testing.T) {
	one := store.Limit{Name: "calls", Capacity: 1, Rate: 0.5}
	for name, test := range map[string]struct {
		others  error
		apart   bool
		limit   store.Limit
		periods []store.Period // of the trip whose attempt comes late, in seconds from the beginning
	}{
		"the server has refused another attempt": {others: errBroken, limit: one},
		"the time of a trip apart is up":         {apart: true, limit: one},
		"the bucket has refused another attempt": {limit: one},
		"another attempt has come before its period": {
			limit: store.Limit{Name: "calls", Kind: store.Hourly, Capacity: 5, Zone: "UTC"}, periods: []store.Period{{Begin: 5, End: 3605, Next: 7205}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newCarrier()
				c.bare = true
				free := c.late(2, false, test.others)
				var events atomic.Int32
				e := engine.New(engine.Config{Carrier: fenced{c, test.apart}, Timeout: time.Second, Observe: func(store.StoreEvent) { events.Add(1) }})
				begin := time.Now().Unix()
				update := func(periods []store.Period, costs ...float64) error {
					op := book(test.limit, costs...)
					for _, p := range periods {
						op.Periods = append(op.Periods, store.Period{Begin: begin + p.Begin, End: begin + p.End, Next: begin + p.Next})
					}
					_, err := e.Update(bg, "key", op)
					return err
				}
				now := []store.Period{{Begin: -3595, End: 5, Next: 3605}}[:len(test.periods)]
				require.NoError(t, update(now, 1))
				err := update(test.periods, 1)
				require.Equal(t, test.others != nil || test.apart, err != nil)
				require.NoError(t, update(now))
				time.Sleep(10 * time.Second)
				free()
				time.Sleep(time.Second)
				require.Equal(t, 1., c.calls())
				require.Zero(t, events.Load())
			})
		})
	}
}

// The same, for a key that the engine has forgotten meanwhile.
func TestFence_AForgottenKeyKeepsIt(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		free := c.late(2, false, errBroken)
		require.NoError(t, try(e, "key"))
		require.ErrorIs(t, try(e, "key"), errBroken)
		time.Sleep(2 * time.Minute)
		for i := range 100 {
			_, err := e.Update(bg, string(rune('A'+i)), book(ages))
			require.NoError(t, err)
		}
		ask(t, e, book(ages))
		free()
		time.Sleep(time.Second)
		require.Equal(t, 1., c.calls())
	})
}

// A refusal that the engine remembers is not repeated while it is unknown what became of the key's
// last trip.
func TestFence_NoRefusalFromMemory(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		free := c.late(3, false, errBroken)
		small := store.Limit{Name: "calls", Capacity: 1, Rate: 1e-6}
		r := ask(t, e, book(small, 1))
		require.True(t, ask(t, e, book(small, 1)).Refused)
		_, err := e.Update(bg, "key", &store.Op{Limits: []store.Limit{small}, Reports: settle(&r.Charges[0], 0.5)})
		require.ErrorIs(t, err, errBroken)
		require.True(t, ask(t, e, book(small, 1)).Refused)
		free()
		time.Sleep(time.Second)
		require.InDelta(t, 1, c.level("key"), 0.01)
	})
}

// A call that has failed is returned once, even if several attempts bring its booking afterwards.
// A second return would free the units of other calls.
func TestFence_LateAttemptsReturnABookingOnce(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		free := c.late(2, true, nil)
		ten := store.Limit{Name: "calls", Capacity: 10, Rate: 1e-6}
		ask(t, e, book(ten, 1, 1, 1))
		_, err := e.Update(bg, "key", book(ten, 1))
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.Positive(t, e.Stats().Repeats)
		free()
		time.Sleep(5 * time.Second)
		require.Equal(t, 4., c.calls())
		require.InDelta(t, 3, c.level("key"), 0.01)
	})
}
