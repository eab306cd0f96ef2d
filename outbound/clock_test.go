package outbound

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// timed returns a store whose replies say when they were true and when they were sent, from the request on. They say
// nothing if heard is 0.
func timed(way, back, when, heard time.Duration) StoreFunc {
	s := &FakeStore{Way: way, Back: back}
	return func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
		sent := time.Now()
		r, err := s.Update(ctx, key, op)
		if heard != 0 {
			r.When, r.Received = sent.Add(when), sent.Add(heard)
		}
		return r, err
	}
}

// bookedIn returns a bucket in the store, and the booking of a reservation that is due immediately.
func bookedIn(t *testing.T, s store.Store, limit Limit) (*Bucket, *BookRequest) {
	t.Helper()
	b, k := Must(NewSharedBucket(s, "k", limit)), &BookRequest{Costs: []Cost{{1}}, Wait: maxWait}
	must(t, b.Book(ctx, k))
	return b, k
}

// A reservation is due from the time at which the reply was true, where the store reports it.
func TestClock_DueCountsFromWhenTheReplyWasTrue(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		store StoreFunc
		due   time.Duration // from the sending on
		late  time.Duration // of a call that takes it when the reply is there
	}{
		"as usual":             {timed(10*ms, 10*ms, 10*ms, 20*ms), 10 * ms, 10 * ms},
		"delayed":              {timed(10*ms, 310*ms, 10*ms, 20*ms), 10 * ms, 310 * ms},
		"faster than usual":    {timed(10*ms, 5*ms, 10*ms, 20*ms), 10 * ms, 5 * ms},
		"does not tell":        {timed(10*ms, 310*ms, 0, 0), 320 * ms, 0},
		"from before the trip": {timed(10*ms, 10*ms, -time.Hour, -time.Hour), 0, 20 * ms},
		"from the future":      {timed(10*ms, 10*ms, time.Hour, 2*time.Hour), 20 * ms, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			sent := time.Now()
			b, k := bookedIn(t, c.store, Limit{Capacity: 1, LeakRate: 1})
			ticket := k.Tickets[0]
			due := k.Clock.Due(ticket).Sub(sent)
			errorIf(t, due != c.due, "%s: due after %v, want %v", name, due, c.due)
			ready, late := k.Clock.Ready(ticket, time.Now())
			errorIf(t, !ready || late != c.late, "%s: ready %v, %v late, want %v", name, ready, late, c.late)
			// A later reply does not excuse a call that could have left before.
			time.Sleep(time.Second)
			_, late = clockOf(t, b).Ready(ticket, time.Now())
			errorIf(t, late < time.Second, "%s: %v late after a pause of 1s", name, late)
		})
	}
}

// A reply counts for 25 ms or a request's time, whichever is longer, from its arrival on.
func TestClock_IsFreshFor25MillisecondsOrARequest(t *testing.T) {
	const ms = time.Millisecond
	for way, fresh := range map[time.Duration]time.Duration{ms: 25 * ms, 10 * ms: 25 * ms, 20 * ms: 40 * ms, 100 * ms: 200 * ms, 600 * ms: time.Second} {
		for _, delay := range []time.Duration{0, 500 * ms} {
			synctest.Test(t, func(t *testing.T) {
				_, k := bookedIn(t, timed(way, way+delay, way, 2*way), Limit{Capacity: 1, LeakRate: 1})
				arrived := time.Now()
				for _, age := range []time.Duration{0, fresh, fresh + 1} {
					ready, _ := k.Clock.Ready(k.Tickets[0], arrived.Add(age))
					errorIf(t, ready != (age <= fresh), "%v away, %v after the reply: ready %v", way, age, ready)
				}
			})
		}
	}
}

// repeating returns a store whose first replies to bookings are lost, and come again from a record after some time.
func repeating(lost int, after time.Duration) StoreFunc {
	s := new(FakeStore)
	return func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
		r, err := s.Update(ctx, key, op)
		if lost > 0 && op.Action == store.Book && len(op.Costs) > 0 {
			lost--
			time.Sleep(after)
			charges := r.Charges
			r, err = s.Apply(key, &store.Op{Limits: op.Limits, Number: op.Number})
			r.Charges = charges
		}
		r.When, r.Received = time.Now(), time.Now()
		return r, err
	}
}

// An Acquire whose reply comes again from a record asks once more if the reply is too late.
func TestAcquire_RepeatedReplyIsLate(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		lost  int
		after time.Duration
		extra float64 // units by which the level is higher than in time
		error bool
	}{
		{lost: 1, after: 90 * ms},
		{lost: 1, after: 900 * ms, extra: 0.9},
		{lost: 1, after: 3 * time.Second, extra: 3},
		{lost: 4, after: 200 * ms, extra: 0.8},
		{lost: 9, after: 900 * ms, error: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewSharedBucket(repeating(c.lost, c.after), "k", Limit{Capacity: 10, LeakRate: 1}))
			began := time.Now()
			_, err := b.Acquire(ctx, Cost{10})
			took := time.Since(began)
			synctest.Wait() // a reservation that is not confirmed returns without the caller
			s, stateErr := b.State(ctx)
			fatalIf(t, stateErr != nil, "%v", stateErr)
			if c.error {
				var store *StoreError
				errorIf(t, !errors.As(err, &store) || s.Level > 0.1 || took > 3*time.Second,
					"%+v: %v after %v, level %v", c, err, took, s.Level)
				return
			}
			// If the delay was too long, the reservation is one of after it.
			if want := 10 - took.Seconds() + c.extra; err != nil || math.Abs(s.Level-want) > 0.001 {
				t.Errorf("%+v: %v, level %v after %v, want %v", c, err, s.Level, took, want)
			}
		})
	}
}

// A reservation whose reply comes again from a record is late.
func TestClock_RepeatedTicketIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, k := bookedIn(t, repeating(1, time.Second), Limit{Capacity: 10, LeakRate: 1})
		ready, late := k.Clock.Ready(k.Tickets[0], time.Now())
		errorIf(t, !ready || late != time.Second, "ready %v, %v late", ready, late)
	})
}

// Reopens returns in how much time a window or a period that is full admits calls again.
func TestClock_Reopens(t *testing.T) {
	for name, c := range map[string]struct {
		limit    Limit
		from, to time.Duration // that it reopens in, 10 s after it was filled
	}{
		"leaky":  {Limit{Capacity: 10, LeakRate: 0.01}, 0, 0},
		"spaced": {PerMinute(10).Burst(10), 0, 0},
		"moving": {Window(10, time.Minute), time.Minute, time.Minute + time.Second},
		"fixed":  {FixedWindow(10, time.Minute), time.Minute, time.Minute + time.Second},
		"hour":   {Hourly(10), time.Hour - 11*time.Second, time.Hour + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, b *Bucket) {
				time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + time.Second)))
				for range 8 {
					admit(t, b, 1)
				}
				time.Sleep(10 * time.Second)
				k := clockOf(t, b)
				equal(t, k.Reopens(&Cost{2}), 0, "with room for two it reopens after")
				in := k.Reopens(&Cost{3})
				errorIf(t, in < c.from || in > c.to, "it reopens in %v", in)
				equal(t, k.Reopens(new(Cost)), 0, "for nothing it reopens after")
			}, c.limit)
		})
	}
	equal(t, new(Clock).Reopens(&Cost{1}), 0, "a clock that was never heard")
}

// earliest returns in how much time a call of n units leaves at the earliest, after so many ahead.
func earliest(t *testing.T, b *Bucket, ahead, n float64) (time.Duration, *Clock) {
	t.Helper()
	k := clockOf(t, b)
	at, _, err := k.Earliest(&Cost{n}, &Cost{ahead})
	must(t, err)
	return time.Until(at), k
}

// A window frees the units above its capacity with the rest, whether calls have cost more than they acquired or the limit
// was lowered.
func TestClock_EarliestOfAWindowAboveItsCapacity(t *testing.T) {
	for _, kind := range []func(float64, time.Duration) Limit{Window, FixedWindow} {
		for _, lowered := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				n := 10.
				if lowered {
					n = 100
				}
				b := Must(NewBucket("k", kind(n, time.Minute)))
				p := admit(t, b, n)
				if lowered {
					must(t, b.SetLimits(ctx, kind(10, time.Minute)))
				} else {
					p.Settle(Cost{100})
				}
				time.Sleep(time.Second)
				const back = 59*time.Second + jitter
				for ahead, want := range map[float64]time.Duration{0: back, 9: back, 10: back + time.Minute + jitter, 20: back + 2*(time.Minute+jitter)} {
					got, _ := earliest(t, b, ahead, 1)
					errorIf(t, got != want, "lowered %v, %v ahead: in %v, want %v", lowered, ahead, got, want)
				}
			})
		}
	}
}

// No call leaves before its earliest time, and one that surely leaves by a time has left by then.
func TestClock_EarliestAndSurelyAreBounds(t *testing.T) {
	exact, sure := 0, 0
	for seed := range uint64(2_000) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 191))
			n := 1 + r.IntN(3)
			limits := func() []Limit {
				all := [...]Limit{Window(float64(2+r.IntN(9)), time.Second), Window(float64(5+r.IntN(20)), 10*time.Second),
					FixedWindow(float64(3+r.IntN(60)), 2*time.Second), {Capacity: 4, LeakRate: float64(1 + r.IntN(5))},
					{Capacity: float64(2 + r.IntN(30)), LeakRate: 2}, Hourly(float64(20 + r.IntN(60)))}
				return []Limit{all[seed%6].Of(0, "one"), all[r.IntN(6)].Of(0, "other"), all[r.IntN(6)].Of(0, "third")}[:n]
			}
			time.Sleep(time.Duration(r.Int64N(int64(time.Hour))))
			if r.IntN(4) == 0 { // around the end of an hour
				time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + time.Duration(r.NormFloat64()*3*float64(time.Second)))))
			}
			b := Must(NewBucket("k", limits()...))
			if r.IntN(2) == 0 {
				b = Must(NewSharedBucket(store.NewMemory(), "k", limits()...))
			}
			for range 40 {
				p, err := b.Acquire(ctx, Cost{1})
				switch r.IntN(20) {
				case 0, 1:
					if err == nil {
						p.Settle(Cost{3 * r.Float64()})
					}
				case 2:
					err = b.SetLimits(ctx, limits()...)
				case 3:
					err = b.Hold(ctx, time.Duration(1+r.IntN(int(2*time.Second))))
				case 4:
					err = b.Book(ctx, &BookRequest{Costs: []Cost{{1}, {2}}, Wait: 5 * time.Second, Horizon: time.Second})
				case 5, 6:
					time.Sleep(time.Duration(r.ExpFloat64() * float64(time.Second)))
				}
				fatalIf(t, err != nil && !errors.Is(err, ErrThrottled), "%v", err)
			}
			costs := make([]Cost, 1+r.IntN(30))
			alike, sum := r.IntN(2) == 0, Cost{}
			for i := range costs {
				if costs[i] = (Cost{1 / float64(1+seed/6%2)}); !alike {
					costs[i][0] = 1 + r.Float64()
				}
				if i > 0 {
					sum[0] += costs[i-1][0]
				}
			}
			last := costs[len(costs)-1]
			_, clock := earliest(t, b, 0, 1)
			least, _, err := clock.Earliest(&last, &sum)
			must(t, err)
			at := time.Now()
			for _, c := range costs { // as a queue asks
				time.Sleep(time.Until(at) - 5*time.Millisecond)
				k := BookRequest{Costs: []Cost{c}, Wait: maxWait}
				err := b.Book(ctx, &k)
				for full := (*ThrottledError)(nil); errors.As(err, &full); err = b.Book(ctx, &k) {
					time.Sleep(full.RetryAfter)
				}
				must(t, err)
				at = k.Clock.Due(k.Tickets[0])
			}
			if at.Before(least.Add(-time.Microsecond)) { // sums of durations round
				t.Errorf("seed %d, %v: earliest at %v, goes at %v", seed, states(t, b), least, at)
			}
			if by := at.Add(-10 * time.Microsecond); clock.Surely(&last, &sum, len(costs)-1, alike, by) {
				t.Errorf("seed %d, %v, %d calls, alike %v: surely goes by %v, goes at %v", seed, states(t, b), len(costs), alike, by, at)
			}
			if !at.After(least.Add(time.Microsecond)) {
				exact++
			}
			if clock.Surely(&last, &sum, len(costs)-1, alike, at.Add(at.Sub(clock.said.At)/4+time.Second)) {
				sure++
			}
		})
	}
	t.Logf("%d exact, %d sure", exact, sure)
	errorIf(t, exact < 1_000 || sure < 500,
		"only %d of 2,000 went at the earliest time, and only %d were sure", exact, sure)
}

// A clock reports a change by this process after its request, and no change that its own request has carried.
func TestClock_ChangedSinceTheRequest(t *testing.T) {
	bothWays(t, func(t *testing.T, b *Bucket) {
		defer b.Waiting(func() {})()
		p := admit(t, b, 2)
		changed := func(want bool, after string, do func()) {
			t.Helper()
			k := clockOf(t, b)
			do()
			equal(t, k.Changed(), want, "changed after %s", after)
		}
		changed(false, "nothing", func() {})
		changed(true, "a hold", func() { must(t, b.Hold(ctx, time.Second)) })
		p.Settle(Cost{1})
		changed(false, "a settle that rode on the request", func() {})
		changed(false, "a look", func() { states(t, b) })
		changed(true, "other limits", func() { must(t, b.SetLimits(ctx, PerSecond(3))) })
	}, Limit{Capacity: 10, LeakRate: 1})
}
