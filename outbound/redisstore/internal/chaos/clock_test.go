//go:build linux

package chaos

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// The server's clock jumps ahead. The bucket takes that for a rest, and is empty. Then
// the clock steps back by as much. The bucket loses that time, and nothing stalls.
func TestClock_JumpCostsOneCapacity(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.StartWithClock(t)
	fs := newFleets(t, leaky, window)
	fs.addSome(4, func() redis.UniversalClient { return server.Client(t) }, role{})
	fs.goesOn(20)
	jumps := 0.
	offsets := []time.Duration{0, d.between(time.Second, 50*time.Second), 0, time.Hour, 0}
	for i, offset := range offsets[1:] {
		fs.run(d.between(150*time.Millisecond, 400*time.Millisecond))
		server.SetClock(t, offset)
		took := fs.goesOn(1)
		t.Logf("clock at %v: the first calls went %v later", offset, took.Round(time.Millisecond))
		require.Less(t, took, 20*time.Second)
		if offset > offsets[i] {
			jumps++
		}
	}
	fs.run(300 * time.Millisecond)
	fs.checkBoth(nothing, func(p promise) float64 {
		if p.window > 0 {
			return emptied(p) // between two jumps there is a step back, and so more than a window
		}
		return jumps * emptied(p)
	})
}

// checkGained fails the test if bucket time has run ahead of the machine's time by more than this,
// which needs no lateness to explain it. The machine's own clock may be slewed by 500 ppm: 5 ms
// in 10 s.
func (f *fleet) checkGained(most time.Duration) {
	f.t.Helper()
	gained := f.gained()
	f.t.Logf("bucket time gained %v, %v allowed", gained, most)
	require.LessOrEqual(f.t, gained, most+5*time.Millisecond)
}

// A clock that wobbles by 50 ms to either side steps forward by 100 ms again and again. That counts
// once, and makes a window shorter by the swing. Steps back by up to an hour free nothing, and
// calls go on.
func TestClock_WobbleCostsItsSwingOnce(t *testing.T) {
	t.Parallel()
	const swing, steps = 50 * time.Millisecond, 20
	d := newDice(t)
	server := redistest.StartWithClock(t)
	fs := newFleets(t, outbound.Limit{Capacity: 20, LeakRate: 100}, window)
	fs.addSome(4, func() redis.UniversalClient { return server.Client(t) }, role{})
	fs.goesOn(20)
	for range steps {
		server.SetClock(t, swing)
		fs.run(d.between(20*time.Millisecond, 80*time.Millisecond))
		server.SetClock(t, -swing)
		fs.run(d.between(20*time.Millisecond, 80*time.Millisecond))
	}
	for offset := -swing; offset > -3*time.Hour; {
		offset -= d.between(time.Minute, time.Hour)
		server.SetClock(t, offset)
		require.Less(t, fs.goesOn(1), 20*time.Second)
		fs.run(d.between(0, 100*time.Millisecond))
	}
	fs[0].checkBoth(nothing, leaked(2*swing+replyUse))
	f := fs[1]
	f.stop()
	p := promiseOf(t, window)
	f.checkReservations(t, p, 0)
	f.checkCalls(f.api.Arrivals(), promise{units: p.units, window: p.window - 2*swing}, 0)
	for _, f := range fs {
		require.Len(t, f.lives(), 1)
		f.checkGained(2 * swing)
	}
}

// The promoted replica has a clock of its own. If it is an hour ahead, the bucket takes
// that for an hour of rest. If it is an hour behind, the bucket sees a clock that has
// stepped back.
func TestClock_OfANewMaster(t *testing.T) {
	t.Parallel()
	for name, offset := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDice(t)
			p := newPair(t, redistest.StartWithClock)
			fs := newFleets(t, leaky, window)
			fs.addSome(4, func() redis.UniversalClient { return p.client(t) }, role{})
			fs.goesOn(20)
			for _, f := range fs {
				p.follows(t, f.members[0].store.Key(f.key))
			}
			p.replica.SetClock(t, offset)
			fs.run(d.between(0, 300*time.Millisecond))
			p.master.Kill(t)
			p.promote(t)
			took := fs.goesOn(1)
			t.Logf("after the failover the first call went %v later", took.Round(time.Millisecond))
			require.Less(t, took, 20*time.Second)
			fs.run(500 * time.Millisecond)
			// In either case the last charges may not have reached the replica.
			fs.check(forgotten)
			for _, f := range fs { // each server keeps the limit by itself
				p, now := promiseOf(t, f.limits[0]), time.Duration(time.Now().UnixNano())
				here := func(g grant) bool { return (g.at - now).Abs() < time.Hour/2 }
				f.of(here).checkReservations(t, p, 0)
				f.of(func(g grant) bool { return !here(g) }).checkReservations(t, p, 0)
			}
		})
	}
}

// wallClock names the functions that turn a time.Time into a time of the wall clock, or
// the other way round.
var wallClock = map[string]bool{
	"Unix": true, "UnixNano": true, "UnixMicro": true, "UnixMilli": true, "Round": true, "Truncate": true,
	"UTC": true, "Local": true, "In": true, "Date": true, "Clock": true, "Hour": true, "Format": true, "AppendFormat": true,
	"MarshalJSON": true, "MarshalBinary": true, "MarshalText": true, "GobEncode": true,
}

// ofTheCalendar are the files that may: a limit by the calendar in this process counts by its wall
// clock, and for a shared bucket that only guesses the store's time, which the store corrects. A
// process gives its slots of calls in flight up by the clock that shows more time: one stands while
// the machine sleeps.
var ofTheCalendar = map[string]bool{"outbound/internal/calendar/calendar.go": true, "outbound/store/memory.go": true, "outbound/internal/slots/holder.go": true}

// A worker's wall clock can be set at will, because no decision but those of calendars in this
// process reads it: the code only compares and subtracts times, which is monotonic, and sends
// durations to the store.
func TestClock_OfTheProcessIsNotRead(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..", "..")
	files := 0
	for _, dir := range []string{"outbound", "outbound/internal/calendar", "outbound/internal/key", "outbound/internal/reports", "outbound/internal/slots", "outbound/store", "outbound/redisstore", "queue"} {
		all, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		require.NoError(t, err)
		for _, path := range all {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			files++
			if ofTheCalendar[dir+"/"+filepath.Base(path)] {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				s, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !wallClock[s.Sel.Name] {
					return true
				}
				if x, ok := s.X.(*ast.Ident); !ok || x.Name != "math" { // math.Round
					t.Errorf("%s: %s makes a time of the wall's clock", set.Position(n.Pos()), s.Sel.Name)
				}
				return true
			})
		}
	}
	require.Greater(t, files, 30)
}

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
