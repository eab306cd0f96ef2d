package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Every operation ends within the Timeout. Once the server is known to be unavailable, operations
// fail immediately, and an event says which reports are lost. Events are reported one after the other.
func TestOutage_EveryOperationEndsInTime(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		var observing atomic.Int32
		c.observed = func() {
			require.EqualValues(t, 1, observing.Add(1))
			time.Sleep(time.Second)
			observing.Add(-1)
		}
		free := c.hang()
		start := time.Now()
		each(100, func(int) {
			require.ErrorIs(t, try(e, "key"), store.ErrUnavailable)
			require.LessOrEqual(t, time.Since(start), time.Second)
		})
		start = time.Now()
		require.ErrorIs(t, try(e, "key"), store.ErrUnavailable)
		_, err := e.Update(bg, "key", &store.Op{Limits: []store.Limit{ages}, Reports: settle(&store.Charge{N: store.Units{1}}, 2)})
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.Zero(t, time.Since(start))
		free()
		time.Sleep(time.Minute)
		require.NoError(t, try(e, "key"))
		require.Equal(t, []store.StoreEventKind{store.EventDown, store.EventLost, store.EventUp}, c.reported())
	})
}

// A server that only reads, and refuses steps older than a second, is down after the Timeout, however
// long that is: then calls fail immediately, and an event reports it. When it writes again, calls
// have the whole Timeout.
func TestOutage_ServerThatOnlyReadsIsDown(t *testing.T) {
	running(t, 5*time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		errReading := errors.New("the server only reads")
		var writes atomic.Bool
		c.answers(func(_ int, a *engine.Attempt) error {
			switch {
			case writes.Load():
				return nil
			case time.Since(a.State.(composed).at) > time.Second:
				return errRace
			}
			return errReading
		})
		began := time.Now()
		err := try(e, "key")
		require.ErrorIs(t, err, errReading)
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
		require.Len(t, c.reported(), 1)
		require.ErrorIs(t, c.events[0].Err, errReading)
		began = time.Now()
		require.ErrorIs(t, try(e, "key"), errReading)
		require.Zero(t, time.Since(began))
		for time.Since(began) < 20*time.Second { // further attempts find the same
			require.ErrorIs(t, try(e, "key"), errReading)
			time.Sleep(10 * time.Millisecond)
		}
		require.Len(t, c.reported(), 1)
		writes.Store(true)
		time.Sleep(time.Minute)
		for range 3 {
			require.NoError(t, try(e, "key"))
		}
		require.Equal(t, []store.StoreEventKind{store.EventDown, store.EventUp}, c.reported())
	})
}

// A step that finds the key written does not end an outage: the other process may have written it
// before. The second one in the outage does.
func TestOutage_KeyWrittenBeforeEndsNone(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		errReading := errors.New("the server only reads")
		var down, contended atomic.Bool
		var asked atomic.Int64
		c.answers(func(int, *engine.Attempt) error {
			if contended.Load() || down.Load() && asked.Add(1)%2 == 1 {
				return errRace
			}
			return errReading
		})
		require.ErrorIs(t, try(e, "key"), errReading)
		down.Store(true)
		for range 100 {
			require.ErrorIs(t, try(e, "key"), store.ErrUnavailable)
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, []store.StoreEventKind{store.EventDown}, c.reported())
		contended.Store(true) // the server writes again, and other processes are always first
		time.Sleep(time.Second)
		require.ErrorIs(t, try(e, "key"), errRace)
		require.Equal(t, []store.StoreEventKind{store.EventDown, store.EventUp}, c.reported())
	})
}

// Only an attempt that has asked the server ends an outage.
func TestOutage_AttemptThatAsksNoServerEndsNone(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		c.apart = true
		c.answers(func(_ int, a *engine.Attempt) error {
			if a.Key.Bucket != "idle" {
				return errSilent
			}
			a.Unasked = true
			return errRace
		})
		require.ErrorIs(t, try(e, "key"), store.ErrUnavailable)
		time.Sleep(time.Second)
		require.Error(t, try(e, "idle"))
		require.Equal(t, []store.StoreEventKind{store.EventDown}, c.reported())
		require.Len(t, e.Stats().Outages, 1)
		require.Zero(t, e.Stats().Requests.Count)
	})
}

// A caller gets the latest reason for which its call fails.
func TestOutage_ErrorIsTheLatestReason(t *testing.T) {
	for _, test := range []struct {
		name string
		// phases are the answers, each until the time since the start.
		phases  []phase
		apart   bool // a locked key goes apart
		callers int
		want    error
		notWant error
	}{
		{name: "the server goes away while the row is locked",
			phases: []phase{{400, errRace}, {10_000, errLost}}, callers: 1, want: errLost},
		{name: "later no server is asked",
			phases: []phase{{100, errRace}, {500, errLost}, {10_000, nil}}, callers: 1, want: errLost},
		{name: "a locked key, and then a silent server",
			phases: []phase{{1, errRace}, {10_000, errSilent}}, apart: true, callers: 3, want: store.ErrUnavailable, notWant: errRace},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				start, c := time.Now(), newCarrier()
				c.apart = test.apart
				c.send = func(ctx context.Context, todo []engine.Attempt) {
					time.Sleep(10 * time.Millisecond)
					a, since := &todo[0], time.Since(start)-10*time.Millisecond
					for _, p := range test.phases {
						if since < p.until*time.Millisecond {
							a.Err = p.err
							break
						}
					}
					switch a.Err {
					case nil:
						a.Unasked, a.Err = true, errRace
					case errSilent:
						<-ctx.Done()
						a.Err = ctx.Err()
					}
				}
				e := c.start(time.Second)
				each(test.callers, func(i int) {
					time.Sleep(time.Duration(i) * 100 * time.Millisecond)
					err := try(e, "key")
					require.ErrorIs(t, err, store.ErrUnavailable)
					require.ErrorIs(t, err, test.want)
					if test.notWant != nil {
						require.NotErrorIs(t, err, test.notWant)
					}
				})
			})
		})
	}
}

type phase struct {
	until time.Duration // in ms
	err   error         // nil: no server is asked
}

// A reason from before the server's last answer is not why a later trip has no answer.
func TestOutage_AnswerEndsTheReasonBeforeIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		var answered atomic.Bool
		e := newCarrier().answers(func(int, *engine.Attempt) error {
			switch {
			case answered.Load():
				return errSilent
			case time.Since(start) > 800*time.Millisecond:
				answered.Store(true)
				return errBroken
			}
			return errLost
		}).start(time.Second)
		each(2, func(i int) { // the second one waits for the trip of the first
			time.Sleep(time.Duration(i) * 400 * time.Millisecond)
			err := try(e, "key")
			if i == 0 {
				require.ErrorIs(t, err, errBroken)
				return
			}
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.NotErrorIs(t, err, errLost)
		})
	})
}

// barred is a carrier of a server that has locked the row of each key except "key".
type barred struct{ *carrier }

func (barred) Take(a *engine.Attempt) engine.Verdict {
	if a.Key.Bucket == "key" {
		return engine.Failed
	}
	a.Key.Apart = true
	return engine.Later
}

func (b barred) Unavailable(cause error) error {
	if cause == errRace {
		return cause
	}
	return b.carrier.Unavailable(cause)
}

// A caller that has waited for another batch runs out of time before its trip does. Its error says
// that its row is locked, and not that the server is unavailable.
func TestOutage_LockedRowIsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCarrier().answers(func(int, *engine.Attempt) error {
			time.Sleep(100 * time.Millisecond)
			return errRace
		})
		e := engine.New(engine.Config{Carrier: barred{c}, Timeout: time.Second})
		each(8, func(i int) { // some have one pipeline
			key := "key"
			if i > 0 {
				time.Sleep(50 * time.Millisecond)
				key = string(rune('a' + i))
			}
			err := try(e, key)
			require.ErrorIs(t, err, errRace)
			require.NotErrorIs(t, err, store.ErrUnavailable, key)
		})
	})
}

// Stats has each outage with its server, its beginning and its latest reason.
func TestStats_ShowsOutages(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		require.NoError(t, try(e, "key"))
		require.Nil(t, e.Stats().Outages)
		c.set(func() { c.fails = errLost })
		require.ErrorIs(t, try(e, "key"), store.ErrUnavailable)
		since := time.Now()
		for _, why := range []error{errLost, errors.New("still starting")} {
			c.set(func() { c.fails = why })
			for range 5 {
				time.Sleep(time.Minute)
				require.ErrorIs(t, try(e, "key"), store.ErrUnavailable)
			}
			all := e.Stats().Outages
			require.Len(t, all, 1)
			require.Empty(t, all[0].Server)
			require.WithinDuration(t, since, all[0].Since, time.Second/10)
			require.ErrorIs(t, all[0].Err, store.ErrUnavailable)
			require.ErrorIs(t, all[0].Err, why)
		}
		c.set(func() { c.fails = nil })
		time.Sleep(time.Minute)
		require.NoError(t, try(e, "key"))
		require.Nil(t, e.Stats().Outages)
	})
	onNodes(t, func(t *testing.T, c *carrier, e *engine.Engine) {
		free := c.hang()
		require.ErrorIs(t, try(e, "key"), store.ErrUnavailable)
		all := e.Stats().Outages
		require.Len(t, all, 1)
		require.Equal(t, "a", all[0].Server)
		free()
		c.set(func() { c.owner, c.learns = "b", true })
		require.Eventually(t, func() bool {
			time.Sleep(time.Second)
			return try(e, "key") == nil
		}, time.Minute, time.Second)
		require.Nil(t, e.Stats().Outages, "b has the keys of a")

		c.set(func() { c.fails = errDenied })
		require.ErrorIs(t, try(e, "key"), errDenied)
		all = e.Stats().Outages
		require.Len(t, all, 1)
		require.Equal(t, "b", all[0].Server)
		require.Equal(t, time.Now(), all[0].Since)
		require.ErrorIs(t, all[0].Err, errDenied)
		require.NotErrorIs(t, all[0].Err, store.ErrUnavailable)
		c.set(func() { c.fails = nil })
		require.NoError(t, try(e, "key"))
		require.Nil(t, e.Stats().Outages)
	})
}

// Stats counts each operation once, and no count ever falls.
func TestStats_CountsEachOperationOnce(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		line := &badLine{Carrier: c.other(), dice: dice(t), lost: 0.1, noReply: 0.1, delay: 10 * time.Millisecond}
		c.send = line.Send
		done := make(chan struct{})
		var watching sync.WaitGroup
		watching.Go(func() {
			for was := e.Stats(); ; time.Sleep(100 * time.Millisecond) {
				is := e.Stats()
				requireGrown(t, was, is)
				was = is
				select {
				case <-done:
					return
				default:
				}
			}
		})
		var asked, good, failed, cancelled atomic.Uint64
		each(8, func(i int) {
			for j := range 60 {
				if i == 0 && j%30 == 15 {
					time.AfterFunc(2*time.Second, c.hang())
				}
				ctx, cancel := context.WithTimeout(bg, time.Duration(50+j%3*5000)*time.Millisecond)
				asked.Add(1)
				_, err := e.Update(ctx, fmt.Sprint("key ", j%4), book(store.Limit{Name: "calls", Capacity: 5, Rate: 10}, 1))
				switch {
				case err == nil:
					good.Add(1)
				case errors.Is(err, context.DeadlineExceeded):
					cancelled.Add(1)
				default:
					failed.Add(1)
				}
				cancel()
				time.Sleep(time.Duration(j%5) * 10 * time.Millisecond)
			}
		})
		time.Sleep(time.Minute)
		close(done)
		watching.Wait()
		line.wait()
		is := e.Stats()
		require.Equal(t, good.Load(), is.Answered+is.Remembered)
		require.Equal(t, failed.Load(), is.Failed)
		require.Equal(t, cancelled.Load(), is.Cancelled)
		require.Equal(t, asked.Load(), is.Answered+is.Remembered+is.Failed+is.Cancelled)
		for _, n := range []uint64{is.Answered, is.Failed, is.Cancelled, is.Repeats, is.Requests.Count} {
			require.NotZero(t, n, "nothing was tested: %+v", is)
		}
	})
}

// requireGrown requires that no count of a later Stats is less than that of an earlier one.
func requireGrown(t *testing.T, was, is store.StoreStats) {
	t.Helper()
	flat := func(s *store.StoreStats) []uint64 {
		all := []uint64{s.Answered, s.Remembered, s.Failed, s.Cancelled, s.Repeats, s.Requests.Count, uint64(s.Requests.Time)}
		return append(all, s.Requests.Within[:]...)
	}
	before, after := flat(&was), flat(&is)
	for i := range before {
		require.LessOrEqual(t, before[i], after[i], "%+v\n%+v", was, is)
	}
	within := uint64(0)
	for _, n := range is.Requests.Within {
		within += n
	}
	require.LessOrEqual(t, within, is.Requests.Count)
}

// Stats counts requests by the time that they take. A request that is sent again is one.
func TestStats_CountsRequestsByTheirTime(t *testing.T) {
	running(t, 100*time.Hour, func(t *testing.T, c *carrier, e *engine.Engine) {
		takes, loses := time.Duration(0), 0 // each attempt, and the replies that are lost first
		c.send = func(_ context.Context, todo []engine.Attempt) {
			time.Sleep(takes)
			c.carry(todo)
			if loses--; loses >= 0 {
				todo[0].Err = errLost
			}
		}
		require.Zero(t, e.Stats().Requests.Count)
		var all time.Duration
		took := []time.Duration{0, time.Millisecond, time.Millisecond + 1, 70 * time.Millisecond, time.Second, time.Hour, time.Hour + 1}
		for i, d := range took {
			takes = d
			require.NoError(t, try(e, fmt.Sprint(i))) // the keys are in all shards
			all += d
		}
		trips := e.Stats().Requests
		require.Equal(t, uint64(len(took)), trips.Count)
		require.Equal(t, all, trips.Time)
		above := time.Duration(-1)
		for i, bound := range store.TimeBounds {
			want := uint64(0)
			for _, d := range took {
				if d > above && d <= bound {
					want++
				}
			}
			require.Equal(t, want, trips.Within[i], "within %v", bound)
			above = bound
		}
		require.Zero(t, e.Stats().Repeats)

		takes, loses = time.Minute, 2
		require.NoError(t, try(e, "key"))
		is := e.Stats()
		require.Equal(t, uint64(2), is.Repeats)
		require.Equal(t, trips.Count+1, is.Requests.Count)
		require.InDelta(t, 3*time.Minute, is.Requests.Time-trips.Time, float64(time.Second)) // and pauses
	})
}
