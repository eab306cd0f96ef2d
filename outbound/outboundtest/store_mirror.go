package outboundtest

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// mirror is a key of the store under examination, and what [leak.Op.ApplyAt] makes of the same
// steps at the times of the store's replies. Each step is compared.
type mirror struct {
	*exam
	key    string
	limits []leak.Limit
	stamp  int64   // of the limits; 0: the worker's own
	ends   []int64 // of the periods of its calendars, as Unix times in seconds
	unix   time.Duration
	charge [2][]leak.Charge // those of the store, and of the arithmetic
	state  leak.Stored
	at     time.Duration // the store's time of the newest reply
	until  time.Duration // the store's time at which it may forget the key
	failed bool
	silent bool // a failure is not told: the test tries again
}

func (e *exam) mirror(limits ...leak.Limit) *mirror {
	return &mirror{exam: e, key: e.key(), limits: limits}
}

// periods returns where a Unix time is in the calendars of all limits.
func (m *mirror) periods(unix time.Duration) []leak.Period {
	i := 0
	for i+4 < len(m.ends) && unix >= time.Duration(m.ends[i+1])*time.Second+leak.Slack {
		i++
	}
	all := make([]leak.Period, len(m.limits))
	for j := range all {
		if m.limits[j].Kind.Calendar() {
			all[j] = leak.Period{Begin: m.ends[i], End: m.ends[i+1], Next: m.ends[i+2], After: m.ends[i+3]}
		}
	}
	return all
}

// do carries out a step, which is made for the charges of each side.
func (m *mirror) do(step func(charges []leak.Charge) leak.Op) leak.Reply {
	m.Helper()
	if m.hooks.Reopen != nil {
		m.store = m.hooks.Reopen(m.store)
	}
	op, same := step(m.charge[0]), step(m.charge[1])
	op.Limits, same.Limits = m.limits, m.limits
	op.Stamp, same.Stamp = m.stamp, m.state.Stamp
	if m.ends != nil {
		op.Periods = m.periods(m.unix)
		same.Periods = op.Periods
	}
	got := m.ask(m.key, &op)
	m.unix = max(m.unix, got.Unix)
	if m.stamp == 0 && got.State.At >= m.until && got.State.Born-m.state.State.Born > time.Millisecond {
		m.state = leak.Stored{} // the store has forgotten the key
	}
	want := same.ApplyAt(&m.state, got.State.At, got.Unix)
	m.compare(&op, &got, &want, got.State.At > m.at)
	m.at = max(m.at, got.State.At)
	m.until = got.State.At + want.Expire
	m.charge[0] = append(m.charge[0], got.Charges...)
	m.charge[1] = append(m.charge[1], want.Charges...)
	return got
}

// compare compares two replies. A state that is not newer than the one before was remembered,
// with a refusal.
func (m *mirror) compare(op *leak.Op, got, want *leak.Reply, fresh bool) {
	m.Helper()
	if m.failed {
		return // all that follows would be wrong as well
	}
	near := func(a, b time.Duration) bool { return a-b < 20*time.Microsecond && b-a < 20*time.Microsecond }
	fail := func(what string, got, want any) {
		m.Helper()
		if m.failed = true; m.silent {
			return
		}
		m.failf("after %v of %v: %s %v, want %v", op.Action, op.Costs, what, got, want)
	}
	switch {
	case got.Stale != want.Stale || got.Untimely != want.Untimely:
		fail("stale and untimely", []bool{got.Stale, got.Untimely}, []bool{want.Stale, want.Untimely})
	case len(got.Charges) != len(want.Charges):
		fail("calls that went", len(got.Charges), len(want.Charges))
	case got.Refused != want.Refused || got.Limit != want.Limit:
		fail("refused by limit", got.Limit, want.Limit)
	case got.Version != want.Version:
		fail("version", got.Version, want.Version)
	case got.Full != want.Full:
		fail("full", got.Full, want.Full)
	}
	for i := range got.Charges {
		if !m.failed && !near(got.Charges[i].Place, want.Charges[i].Place) {
			fail("the place", got.Charges[i].Place, want.Charges[i].Place)
		}
	}
	if !fresh || m.failed {
		return
	}
	g, w := &got.State, &want.State
	switch {
	case got.Refused && !near(got.Wait, want.Wait):
		fail("the wait", got.Wait, want.Wait)
	case !near(g.Dial(), w.Dial()):
		fail("bucket time", g.Dial(), w.Dial())
	case !near(g.Last, w.Last):
		fail("the last booking", g.Last, w.Last)
	case !near(g.Rem, w.Rem):
		fail("the hold", g.Rem, w.Rem)
	}
	if op.Action == leak.Replace {
		return // the levels are those of other limits
	}
	for i := range m.limits {
		a, b := g.Level[i], w.Level[i]
		switch {
		case m.failed:
		case !(math.Abs(a.Level-b.Level) < 1e-3):
			fail("the level of "+m.limits[i].Name, a.Level, b.Level)
		case m.limits[i].Kind == leak.Leaky:
		case !near(time.Duration(a.Top), time.Duration(b.Top)):
			fail("the time until units leave "+m.limits[i].Name, time.Duration(a.Top), time.Duration(b.Top))
		case !near(time.Duration(a.Ret), time.Duration(b.Ret)):
			fail("the time until it is empty, of "+m.limits[i].Name, time.Duration(a.Ret), time.Duration(b.Ret))
		}
	}
}

// book books calls that take as much of each limit, the first at most wait away and the others
// together with it. It checks how many of them have a place.
func (m *mirror) book(cost float64, calls int, wait time.Duration, places int) leak.Reply {
	m.Helper()
	var n leak.Units
	for i := range m.limits {
		n[i] = cost
	}
	r := m.do(func([]leak.Charge) leak.Op {
		op := leak.Op{Action: leak.Book, Wait: wait, Horizon: wait}
		for range calls {
			op.Costs = append(op.Costs, n)
		}
		return op
	})
	if len(r.Charges) != places || r.Refused != (places < calls) {
		m.failf("%d of %d calls of %g have a place within %v, want %d; refused %v", len(r.Charges), calls, cost, wait, places, r.Refused)
	}
	return r
}

// try books a call if it can go now, which only the arithmetic knows.
func (m *mirror) try(cost float64) leak.Reply {
	m.Helper()
	return m.do(func([]leak.Charge) leak.Op { return leak.Op{Action: leak.Book, Costs: []leak.Units{{cost}}} })
}

// settle says what the call with this number has cost of each limit.
func (m *mirror) settle(call int, cost float64) {
	m.Helper()
	m.do(func(charges []leak.Charge) leak.Op {
		if call >= len(charges) {
			return leak.Op{}
		}
		var used leak.Units
		for i := range m.limits {
			used[i] = cost
		}
		return leak.Op{Reports: []leak.Report{{Kind: leak.Settled, Charge: &charges[call], Used: used}}}
	})
}

// hold holds the key.
func (m *mirror) hold(d time.Duration) leak.Reply {
	m.Helper()
	return m.do(func([]leak.Charge) leak.Op {
		return leak.Op{Reports: []leak.Report{{Kind: leak.Held, Wait: d}}}
	})
}

// replace sets limits for all.
func (m *mirror) replace(limits ...leak.Limit) {
	m.Helper()
	r := m.do(func([]leak.Charge) leak.Op { return leak.Op{Action: leak.Replace, Replacement: limits} })
	m.limits, m.stamp, m.charge = limits, r.Stamp, [2][]leak.Charge{}
}

// levels looks at the key and checks its levels.
func (m *mirror) levels(want ...float64) leak.Reply {
	m.Helper()
	r := m.do(func([]leak.Charge) leak.Op { return leak.Op{} })
	for i, level := range want {
		if got := r.State.Level[i].Level; math.Abs(got-level) > 0.01 {
			m.failf("%s has level %v, want %v", m.limits[i].Name, got, level)
		}
	}
	return r
}
