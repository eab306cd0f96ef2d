//go:build linux

package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// The server's clock is set over the ends of hours, ahead and back, while workers call. By that
// clock each hour has all of its calls and not one more, and none within a second of its end. A
// step back brings nothing back.
func TestClock_SetOverTheEndOfAPeriod(t *testing.T) {
	t.Parallel()
	const n = 40
	server := redistest.StartWithClock(t)
	end := time.Now().Truncate(time.Hour).Add(2 * time.Hour) // of the first hour
	set := func(to time.Duration) { server.SetClock(t, time.Until(end.Add(to))) }
	set(-30 * time.Minute)
	f := newFleet(t, outbound.Limit{Capacity: 10, LeakRate: 200}, outbound.Hourly(n))
	// A queue asks for news of a full hour every ten seconds, and a worker believes a refusal for
	// a second. A worker that has just come asks at once.
	full := func() {
		t.Helper()
		m := f.add(server.Client(t), role{bare: true, timeout: time.Minute})
		eventually(t, "the hour is full", func() bool {
			states, err := m.bucket.States(t.Context())
			require.NoError(t, err)
			return states[1].Remaining < 1
		})
	}
	for range 3 {
		f.add(server.Client(t), role{bare: true, timeout: time.Minute})
	}
	f.goesOn(n / 4)
	set(-store.Slack) // from here on no call is admitted
	full()
	set(store.Slack * 7 / 10)
	full() // the next hour begins a second late
	set(store.Slack)
	full()
	set(5*time.Hour + 30*time.Minute) // no worker expects that hour
	full()
	set(-10 * time.Minute) // what was taken of later hours is taken of this one
	full()
	set(time.Hour + 2*time.Second)
	full()
	f.stop()

	eventually(t, "what came too late for a call has gone back", func() bool {
		return f.due().Len() == f.api.Arrivals().Len()
	})
	due := f.due()
	// A call of the later hour may have come too late, and gone back, just before the step: as many
	// calls go after it.
	var others, stepped outboundtest.History
	for at := range due.All() {
		if at.Before(end.Add(-10*time.Minute)) || at.After(end.Add(-5*time.Minute)) {
			others.Add(at, 1)
		} else {
			stepped.Add(at, 1)
		}
	}
	require.NoError(t, others.CheckCalendar(n, outboundtest.Hour, time.UTC, store.Slack))
	later := count(due, end.Add(5*time.Hour), end.Add(6*time.Hour))
	require.LessOrEqual(t, stepped.Len(), n-later, "the step back has brought calls back")
	for i, hour := range []time.Duration{-time.Hour, 0, 5 * time.Hour, time.Hour} {
		from := end.Add(hour)
		to := from.Add(time.Hour)
		alone := count(due, from.Add(store.Slack), to.Add(-store.Slack))
		both := count(due, to.Add(-store.Slack), to.Add(store.Slack))
		t.Logf("hour %d has %d calls of its own, and %d with the next", i, alone, both)
		require.Positive(t, alone)
		require.Zero(t, both, "a call within a second of the end of an hour")
	}
	p := promiseOf(t, f.limits[0])
	f.checkReservations(t, p, 0)
	f.checkCalls(f.api.Arrivals(), p, 5*emptied(p)) // so often the clock was set ahead
}

// count returns how many departures were at or after a time and before another.
func count(h *outboundtest.History, from, to time.Time) (n int) {
	for at := range h.All() {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}
