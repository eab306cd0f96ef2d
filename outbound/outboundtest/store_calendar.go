package outboundtest

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var calendarCases = []storeCase{
	{sentence: "for limits that count by the calendar the store's time is the Unix time", check: checkUnixTime},
	{sentence: "a calendar counts each period by itself, and reserves nothing in the next", check: checkCalendars},
	{sentence: "a calendar admits no call within Slack of the end of a period", check: checkShut},
	{sentence: "if the Periods are not of the store's time, the step does nothing", check: checkUntimely},
}

// dated returns a process whose limits count by the calendar. The first period ends in the given
// number of seconds, or in up to a second less. Each of the next is an hour.
func (e *exam) dated(in int64, limits ...store.Limit) *process {
	e.Helper()
	p := e.process(limits...)
	p.unix = e.now()
	end := int64(p.unix/time.Second) + in
	p.ends = []int64{end - 3600, end, end + 3600, end + 2*3600, end + 3*3600, end + 4*3600}
	return p
}

// now returns the Unix time of the store.
func (e *exam) now() time.Duration {
	e.Helper()
	ever := store.Period{Begin: -1e9, End: 4e9, Next: 4.5e9}
	r := e.ask(e.key(), &store.Op{Limits: []store.Limit{daily(1)}, Periods: []store.Period{ever}})
	if r.Stale || r.Untimely {
		e.Fatalf("the contract says %q: a step by a period from 1938 to 2096 is stale %v and untimely %v, at %v", e.sentence, r.Stale, r.Untimely, time.Unix(0, int64(r.State.Unix)).UTC())
	}
	return r.State.Unix
}

// shutUntil returns the Unix time at which calls of the period after the one with this number may
// leave.
func (p *process) shutUntil(i int) time.Duration {
	return time.Duration(p.ends[i+1])*time.Second + store.Slack
}

// about reports whether both are the same within a tenth of a second.
func about(a, b time.Duration) bool { return a-b < time.Second/10 && b-a < time.Second/10 }

func checkUnixTime(e *exam) {
	asked := time.Now()
	unix := e.now()
	// Clocks may be off by much, but not by a day.
	if off := unix - time.Duration(asked.UnixNano()); off > 24*time.Hour || off < -24*time.Hour {
		e.failf("the store's time is %v, and it is %v", time.Unix(0, int64(unix)).UTC(), asked.UTC())
	}
}

func checkCalendars(e *exam) {
	p := e.dated(1000, daily(5))
	ends := func(r store.Reply, period int) {
		e.Helper()
		if at := r.State.Unix + r.Wait; r.Limit != 0 || !about(at, p.shutUntil(period)) {
			e.failf("refused by limit %d until %v, want until a second after the end, %v", r.Limit, at, p.shutUntil(period))
		}
	}
	p.book(p.of(1), 3, 0, 3)
	r := p.levels(3)
	if part := r.State.Parts[0]; part.End != time.Duration(p.ends[1])*time.Second {
		e.failf("the period ends at %v, want %v", part.End, time.Duration(p.ends[1])*time.Second)
	}
	p.book(p.of(1), 2, 0, 2)
	ends(p.refuse(1), 0)
	ends(p.book(p.of(1), 1, 2*time.Hour, 0), 0) // nothing is reserved in the next period
	p.settle(1, 0)
	p.levels(4)
	p.admit(1)
	p.refuse(1)
	p.settle(0, 3) // of this period
	p.levels(7)
	// The API goes on counting, whatever an operator does.
	p.step(store.Op{Action: store.Resume})
	p.levels(7)
	p.refuse(1)
	// A process whose clock is ahead says that the next period has begun. That is untimely.
	ahead := p.beside(daily(5))
	op := store.Op{Action: store.Book, Costs: []store.Units{{1}}}
	ahead.fill(&op)
	op.Periods = []store.Period{{Begin: p.ends[1], End: p.ends[2], Next: p.ends[3]}}
	if r := e.ask(p.name, &op); !r.Untimely || len(r.Charges) > 0 {
		e.failf("by the next period: untimely %v, %d charges", r.Untimely, len(r.Charges))
	}
}

// checkShut books calls just before and just after the end of a period.
func checkShut(e *exam) {
	const tries = 20
	for range tries { // before the end
		p := e.dated(1, daily(5))
		r := p.step(store.Op{Action: store.Book, Costs: []store.Units{{2}}, Wait: time.Hour})
		if r.State.Unix >= time.Duration(p.ends[1])*time.Second {
			continue // the trip took too long
		}
		if !r.Refused || len(r.Charges) > 0 || !about(r.State.Unix+r.Wait, p.shutUntil(0)) {
			e.failf("%v before the end: refused %v for %v; want until a second after it", time.Duration(p.ends[1])*time.Second-r.State.Unix, r.Refused, r.Wait)
		}
		p.levels(0)
		break
	}
	for range tries { // after it
		p := e.dated(0, daily(5))
		if r := p.try(1); r.State.Unix < p.shutUntil(0) && len(r.Charges) > 0 {
			e.failf("a call leaves %v before a second after the end", p.shutUntil(0)-r.State.Unix)
		}
		r := p.step(store.Op{Action: store.Book, Costs: []store.Units{{2}}, Wait: time.Hour})
		if r.State.Unix >= p.shutUntil(0) {
			continue
		}
		if len(r.Charges) != 1 || !about(r.State.Unix+p.due(&r, 0), p.shutUntil(0)) {
			e.failf("within a second after the end a call is refused %v, or leaves at another time than a second after it", r.Refused)
		}
		p.levels(2)
		// Its booking ends with the period. A caller that holds it past the end returns it.
		if until := time.Duration(p.ends[2])*time.Second - store.Slack; len(r.Charges) == 1 && r.Charges[0].Until != until {
			e.failf("a call has to leave before %v, want %v", r.Charges[0].Until, until)
		}
		return
	}
}

func checkUntimely(e *exam) {
	p := e.dated(1000, daily(5))
	p.admit(2)
	fits := p.periods(p.unix)[0]
	shifted := func(by int64) store.Period {
		return store.Period{Begin: fits.Begin + by, End: fits.End + by, Next: fits.Next + by}
	}
	for what, periods := range map[string][]store.Period{
		"none":      nil,
		"long past": {shifted(-100_000)},
		"to come":   {shifted(100_000)},
		"no order":  {{Begin: fits.End, End: fits.Begin, Next: fits.Next}},
	} {
		base := store.Op{Periods: periods}
		base.Limits, base.Number, base.Base = p.limits, p.number, p.base
		for _, op := range nothings(base, p.charges[0][:1]) {
			for _, key := range []string{p.name, e.key()} {
				r := e.ask(key, &op)
				if !r.Stale && r.Untimely && len(r.Charges) == 0 && r.State.Unix >= p.unix && r.State.Unix <= p.unix+time.Minute {
					continue
				}
				e.failf("%v by periods of which %s fits: stale %v, untimely %v, %d charges, at %v; want a time soon after %v", op.Action, what, r.Stale, r.Untimely, len(r.Charges), r.State.Unix, p.unix)
			}
		}
	}
	if r := p.levels(2); r.State.Rem > 0 || r.Number != 1 {
		e.failf("held for %v, number %d, after steps that do nothing", r.State.Rem, r.Number)
	}
	// A process that is behind says the period before: the store's time is in the next.
	p.ends = append([]int64{p.ends[0] - 3600}, p.ends...)
	p.unix = 0
	p.admit(3)
	p.refuse(1)
	p.levels(5)
}
