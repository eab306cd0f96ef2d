package outboundtest

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// daily is a limit by the calendar. A store knows no zones, and no days: its periods are as
// long as the exam says.
func daily(n float64) leak.Limit {
	return leak.Limit{Name: "day", Kind: leak.Daily, Capacity: n, Zone: "UTC"}
}

// now returns the Unix time of the store.
func (e *exam) now() time.Duration {
	e.Helper()
	ever := leak.Period{Begin: -1e9, End: 5e9, Next: 6e9, After: 7e9}
	r := e.ask(e.key(), &leak.Op{Limits: []leak.Limit{daily(1)}, Periods: []leak.Period{ever}})
	if r.Stale || r.Untimely {
		e.Fatalf("the contract says %q: a step by a period from 1938 to 2128 is stale %v and untimely %v, at %v", e.sentence, r.Stale, r.Untimely, time.Unix(0, int64(r.Unix)).UTC())
	}
	return r.Unix
}

// dated returns a mirror whose limits count by the calendar. The first period ends in the
// given number of seconds, or in up to a second less. Each of the next is an hour.
func (e *exam) dated(in int64, limits ...leak.Limit) *mirror {
	e.Helper()
	m := e.mirror(limits...)
	m.unix = e.now()
	end := int64(m.unix/time.Second) + in
	m.ends = []int64{end - 3600, end, end + 3600, end + 2*3600, end + 3*3600, end + 4*3600}
	return m
}

// end returns the Unix time at which the law goes on to the period after the one with this
// number.
func (m *mirror) end(i int) time.Duration {
	return time.Duration(m.ends[i+1])*time.Second + leak.Slack
}

// about reports whether both are the same within a second.
func about(a, b time.Duration) bool { return a-b < time.Second && b-a < time.Second }

func (e *exam) unixTime() {
	asked := time.Now()
	unix := e.now()
	// Clocks may be off by much, but not by a day.
	if off := unix - time.Duration(asked.UnixNano()); off > 24*time.Hour || off < -24*time.Hour {
		e.failf("the store's time is %v, and it is %v", time.Unix(0, int64(unix)).UTC(), asked.UTC())
	}
}

func (e *exam) calendars() {
	m := e.dated(1000, daily(5))
	m.book(1, 3, 0, 3)
	r := m.levels(3)
	if next, empty := time.Duration(r.State.Level[0].Top), time.Duration(r.State.Level[0].Ret); !about(r.Unix+next, m.end(0)) || next != empty {
		m.failf("the first units go in %v and the last in %v, want the end of the period in %v", next, empty, m.end(0)-r.Unix)
	}
	m.book(1, 2, 0, 2)
	if r := m.book(1, 1, 0, 0); !about(m.unix+r.Wait, m.end(0)) || r.Limit != 0 {
		m.failf("the next is refused by limit %d for %v, want 0 until the end of the period in %v", r.Limit, r.Wait, m.end(0)-m.unix)
	}
	m.settle(1, 0)
	m.levels(4)
	m.book(1, 1, 0, 1)
	m.book(1, 1, 0, 0)
	// The next period.
	if r = m.book(1, 1, 2*time.Hour, 1); len(r.Charges) == 1 {
		if in, _ := r.State.Due(r.Charges[0].Place); !about(m.unix+in, m.end(0)) {
			m.failf("the next place is due in %v, want the end of the period in %v", in, m.end(0)-m.unix)
		}
	}
	next := len(m.charge[0]) - 1
	if r = m.levels(5); !about(r.Unix+time.Duration(r.State.Level[0].Ret), m.end(1)) {
		m.failf("the last units go in %v, want the end of the next period in %v", time.Duration(r.State.Level[0].Ret), m.end(1)-r.Unix)
	}
	m.book(4, 1, 2*time.Hour, 1)
	if r = m.book(1, 1, math.MaxInt64, 0); !about(m.unix+r.Wait, m.end(1)) {
		m.failf("beyond the next period it is refused for %v, want until its end in %v", r.Wait, m.end(1)-m.unix)
	}
	m.settle(next, 0)
	m.book(1, 1, 2*time.Hour, 1)
	m.book(1, 1, 2*time.Hour, 0)
	// The API goes on counting, whatever an operator does.
	m.do(func([]leak.Charge) leak.Op { return leak.Op{Action: leak.Resume} })
	m.levels(5)
	m.book(1, 1, 0, 0)
}

// bothPeriods books a call when a period has ended less than a second ago.
func (e *exam) bothPeriods() {
	for range 20 {
		m := e.dated(0, daily(5))
		m.book(2, 1, 0, 1)
		if m.unix >= m.end(0) {
			continue // the trip took too long
		}
		if r := m.levels(); m.unix < m.end(0) && !about(r.Unix+time.Duration(r.State.Level[0].Ret), m.end(1)) {
			m.failf("the last units of a call at %v after the end of the period go in %v, want the end of the next period in %v", m.unix-m.end(0)+leak.Slack, time.Duration(r.State.Level[0].Ret), m.end(1)-r.Unix)
		}
		time.Sleep(m.end(0) - m.unix)
		m.levels(2)
		m.book(1, 3, 0, 3)
		m.book(1, 1, 0, 0)
		if m.unix < m.end(0) {
			m.failf("after a sleep of the rest, the store's time has not come to %v", m.end(0))
		}
		m.settle(0, 1) // of both
		m.levels(4)
		return
	}
	e.failf("in twenty tries no step came within %v", leak.Slack)
}

func (e *exam) untimely() {
	m := e.dated(1000, daily(5))
	m.book(2, 1, 0, 1)
	charge := m.charge[0]
	if len(charge) == 0 {
		return
	}
	fits := m.periods(m.unix)[0]
	shifted := func(by int64) leak.Period {
		return leak.Period{Begin: fits.Begin + by, End: fits.End + by, Next: fits.Next + by, After: fits.After + by}
	}
	for name, periods := range map[string][]leak.Period{
		"none":      nil,
		"long past": {shifted(-100_000)},
		"to come":   {shifted(100_000)},
		"no order":  {{Begin: fits.End, End: fits.Begin, Next: fits.Next, After: fits.After}},
	} {
		for _, op := range []leak.Op{
			{},
			{Action: leak.Book, Costs: []leak.Units{{1}}},
			{Action: leak.Book, Back: slices.Clone(charge)},
			{Action: leak.Meter, Costs: []leak.Units{{1}}},
			{Action: leak.Resume},
			{Action: leak.Replace, Replacement: []leak.Limit{daily(30)}},
			{Reports: []leak.Report{{Kind: leak.Settled, Charge: &charge[0], Used: leak.Units{4}}}},
			{Reports: []leak.Report{{Kind: leak.Held, Wait: time.Hour}}},
		} {
			op.Limits, op.Periods = m.limits, periods
			if r := m.ask(m.key, &op); !r.Stale || !r.Untimely || len(r.Charges) > 0 || r.Unix < m.unix || r.Unix > m.unix+time.Minute {
				m.failf("%v by periods of which %s fits: stale %v, untimely %v, %d charges, at %v; want a time soon after %v", op.Action, name, r.Stale, r.Untimely, len(r.Charges), r.Unix, m.unix)
			}
		}
	}
	if r := m.levels(2); r.State.Rem > 0 || r.Version != 0 {
		m.failf("held for %v, version %d, after steps that do nothing", r.State.Rem, r.Version)
	}
	// A worker that is behind tells the period before: the store's time is in the next.
	m.ends = append([]int64{m.ends[0] - 3600}, m.ends...)
	m.unix = 0
	m.book(3, 1, 0, 1)
	m.book(1, 1, 0, 0)
	m.levels(5)
}

func (e *exam) converts() {
	leaky := leak.Limit{Name: "calls", Capacity: 10, Rate: 1. / 36000}
	named := func(l leak.Limit) leak.Limit {
		l.Name = "calls"
		return l
	}
	m := e.dated(1000, leaky)
	m.book(6, 1, 0, 1)
	m.replace(named(moving(8, time.Hour)))
	m.levels(6)
	m.book(1, 2, 0, 2)
	if r := m.book(1, 1, 0, 0); r.Wait > time.Hour || r.Wait < time.Hour-time.Minute {
		m.failf("in a window that was a leaky limit the next waits %v, want an hour", r.Wait)
	}
	m.replace(leaky)
	m.levels(8)
	m.book(2, 1, 0, 1)
	if r := m.book(1, 1, 0, 0); r.Wait < 36000*time.Second-time.Minute || r.Wait > 36000*time.Second {
		m.failf("in a leaky limit that was a window the next waits %v, want 10h", r.Wait)
	}
	m.replace(named(daily(12)))
	m.levels(10)
	m.book(2, 1, 0, 1)
	if r := m.book(1, 1, 0, 0); !about(m.unix+r.Wait, m.end(0)) {
		m.failf("in a calendar that was a leaky limit the next waits %v, want until the end of the period in %v", r.Wait, m.end(0)-m.unix)
	}
	m.replace(named(fixed(14, time.Hour)))
	m.levels(12)
	m.book(2, 1, 0, 1)
	m.book(1, 1, 0, 0)
	m.replace(named(moving(15, 2*time.Hour)))
	m.levels(14)
	m.book(1, 1, 0, 1)
	m.book(1, 1, 0, 0)
}

// windowHistory draws what can be done with a key that has a limit of each kind, but for holds:
// a store that keeps microseconds may find another part of a window at the end of one. A store
// whose line loses a reply repeats the step, and then tells of the time of the repetition, by which
// nothing can be compared: so what differs is drawn again, on a new key, before it counts.
func (e *exam) windowHistory() {
	const tries = 5
	for seed := range uint64(3) {
		for try := range tries {
			if e.windowHistoryOf(seed, try < tries-1) {
				break
			}
		}
	}
}

// windowHistoryOf is one history of windowHistory. It reports whether the store did what it should.
func (e *exam) windowHistoryOf(seed uint64, silent bool) bool {
	r := rand.New(rand.NewPCG(11, seed))
	// All places are whole microseconds, as is a sixty-fourth of each window, and no call
	// waits for the leaky limit.
	limits := []leak.Limit{moving(8, 64*time.Millisecond), fixed(16, 128*time.Millisecond), daily(400), {Name: "leaky", Unit: 1, Capacity: 10_000, Rate: 100}}
	m := e.dated(1000, limits...)
	m.silent = silent
	for range 60 {
		cost := leak.Units{float64(r.IntN(4)), float64(r.IntN(4)), float64(1 + r.IntN(4)), float64(r.IntN(9))}
		used := leak.Units{float64(r.IntN(3)), float64(r.IntN(5)), float64(r.IntN(5)), float64(r.IntN(9))}
		d := time.Duration(1+r.IntN(12)) * time.Millisecond
		pick := r.IntN(8) // of the latest calls
		what := r.IntN(13)
		if what < 4 {
			time.Sleep(d)
			continue
		}
		m.do(func(charges []leak.Charge) leak.Op {
			op := leak.Op{Action: leak.Book, Wait: time.Hour, Horizon: time.Hour}
			if pick >= len(charges) {
				op.Costs = []leak.Units{cost}
				return op
			}
			charge := charges[len(charges)-1-pick]
			switch what {
			case 4:
				op.Costs, op.Wait = []leak.Units{cost, used}, 1
			case 5, 6:
				op.Costs = []leak.Units{cost}
			case 7:
				op.Back = charges[len(charges)-1:]
			case 8:
				op.Move, op.Costs = &charges[len(charges)-1], []leak.Units{cost}
			case 9, 10:
				op.Reports = []leak.Report{{Kind: leak.Settled, Charge: &charge, Used: used}}
			case 11:
				op.Action, op.Costs = leak.Meter, []leak.Units{used}
			case 12:
				op.Action = leak.Resume
			}
			return op
		})
		if m.do(func([]leak.Charge) leak.Op { return leak.Op{} }); m.failed {
			return false
		}
	}
	return true
}
