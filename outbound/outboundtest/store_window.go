package outboundtest

import (
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// windowCases are the cases of limits that are no leaky ones.
func windowCases() []storeCase {
	return []storeCase{
		{sentence: "any n go at once, and never more than n in any interval of a window's length", check: (*exam).windows},
		{sentence: "in any interval of a window's length at most n go, however many ask", check: (*exam).windowRate, workers: 4},
		{sentence: "what a call has not used of a window comes back whole", check: (*exam).windowReturns},
		{sentence: "after a hold one call goes and then the window drips", check: (*exam).windowDrips},
		{sentence: "a hold makes a window no longer", check: (*exam).windowsHeld},
		{sentence: "a fixed window begins with the first call after the last one", check: (*exam).fixedWindows},
		{sentence: "workers with different windows are each held to their own", check: (*exam).windowsDisagree},
		{sentence: "for limits that count by the calendar the store's time is the Unix time", check: (*exam).unixTime},
		{sentence: "a calendar counts each period by itself, and books no further than the next", check: (*exam).calendars},
		{sentence: "a call that goes within Slack of the end counts in both periods", check: (*exam).bothPeriods},
		{sentence: "if the Periods are not of the store's time, the step does nothing", check: (*exam).untimely},
		{sentence: "what is in a limit of one kind is in the limit of another that replaces it", check: (*exam).converts},
		{sentence: "the store keeps all that the next step of a window or a calendar needs", check: (*exam).windowHistory},
	}
}

func moving(n float64, w time.Duration) leak.Limit {
	return leak.Limit{Name: "window", Kind: leak.Moving, Capacity: n, Rate: n / w.Seconds(), Window: w}
}

func fixed(n float64, w time.Duration) leak.Limit {
	return leak.Limit{Name: "fixed window", Kind: leak.Fixed, Capacity: n, Rate: n / w.Seconds(), Window: w}
}

// tardy is by how much a store may be late with room that it has told of.
const tardy = 100 * time.Millisecond

// opens asks for one call until it goes. That must not be before a time from sent on, and
// not much after that time from arrived on.
func (m *mirror) opens(sent, arrived time.Time, in time.Duration) (first time.Time) {
	m.Helper()
	for {
		asked := time.Now()
		r := m.try(1)
		switch {
		case len(r.Charges) > 0:
			if took := time.Since(sent); took < in {
				m.failf("a call more than fits went %v after the others, want %v at least", took, in)
			}
			return asked
		case asked.Sub(arrived) > in+tardy:
			m.failf("no call went for %v, want %v", asked.Sub(arrived), in)
			return asked
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (e *exam) windows() {
	m := e.mirror(moving(5, time.Hour))
	m.book(1, 5, 0, 5)
	if r := m.book(1, 1, 0, 0); r.Wait > time.Hour || r.Wait < time.Hour-time.Minute || r.Limit != 0 {
		m.failf("the next is refused by limit %d for %v, want 0 and an hour", r.Limit, r.Wait)
	}
	m.levels(5) // a refusal and a look change nothing
	r := m.levels(5)
	if next, empty := r.State.Level[0].Top, r.State.Level[0].Ret; next != empty || time.Duration(next) > time.Hour || time.Duration(next) < time.Hour-time.Minute {
		m.failf("the first units go in %v and the last in %v, want an hour", time.Duration(next), time.Duration(empty))
	}
	if r := m.book(2, 1, 2*time.Hour, 1); len(r.Charges) == 1 {
		if in, _ := r.State.Due(r.Charges[0].Place); in > time.Hour || in < time.Hour-time.Minute {
			m.failf("the next place is due in %v, want an hour", in)
		}
	}

	const w = 256 * time.Millisecond
	m = e.mirror(moving(4, w))
	sent := time.Now()
	m.book(1, 1, 0, 1)
	arrived := time.Now()
	time.Sleep(w / 2)
	m.book(1, 3, 0, 3)
	m.opens(sent, arrived, w)
	for range 4 { // what the first one has left is taken, and the three others follow
		m.try(1)
		time.Sleep(w / 4)
	}
}

// windowRate lets callers rush, as rate does.
func (e *exam) windowRate() {
	const n, w = 20, 80 * time.Millisecond
	admitted := e.rush(moving(n, w))
	for _, first := range admitted {
		in := 0
		for _, t := range admitted {
			// A thousandth is for clocks that do not run alike.
			if !t.sent.Before(first.sent) && t.arrived.Sub(first.sent) < w-w/1000 {
				in++
			}
		}
		if in > n {
			e.failf("%d calls went within %v, want %d; %d in all", in, w, n, len(admitted))
			return
		}
	}
	if len(admitted) == 0 {
		e.failf("no call went")
	}
}

func (e *exam) windowReturns() {
	m := e.mirror(moving(5, time.Hour))
	m.book(1, 5, 0, 5)
	for _, call := range []int{2, 0, 4} { // also one that is neither the first nor the last
		m.settle(call, 0)
		m.levels(4)
		m.book(1, 1, 0, 1)
		m.book(1, 1, 0, 0)
	}
	m.settle(1, 0.25)
	m.levels(4.25)
	m.settle(3, 3)
	m.levels(6.25)
	// Given back, the latest booking is as if it had never been.
	m = e.mirror(moving(5, time.Hour))
	m.book(5, 1, 0, 1)
	m.book(2, 1, 2*time.Hour, 1)
	m.levels(7)
	m.do(func(c []leak.Charge) leak.Op { return leak.Op{Action: leak.Book, Back: slices.Clone(c[1:])} })
	r := m.levels(5)
	if r.State.Last > 0 {
		m.failf("the last booking is %v away, want none", r.State.Last)
	}
}

func (e *exam) windowDrips() {
	long := moving(100, 100*time.Hour)
	long.Name = "long window"
	m := e.mirror(moving(4, 64*time.Minute), long)
	if r := m.hold(100 * time.Millisecond); r.State.Rem != 100*time.Millisecond {
		m.failf("held for %v, want 100ms", r.State.Rem)
	}
	time.Sleep(110 * time.Millisecond)
	m.levels(3, 0)
	m.book(1, 1, 0, 1)
	// Three units are spread over the past 64 minutes, and one of them goes in a third of that.
	if r := m.book(1, 1, 0, 0); r.Wait < 10*time.Minute || r.Wait > 23*time.Minute || r.Limit != 0 {
		m.failf("the second waits %v for limit %d, want 22m for 0", r.Wait, r.Limit)
	}
	m.do(func([]leak.Charge) leak.Op { return leak.Op{Action: leak.Resume} })
	m.levels(1, 1)
}

func (e *exam) windowsHeld() {
	pace := leak.Limit{Name: "pace", Capacity: 1, Rate: 20}
	m := e.mirror(pace, moving(3, 640*time.Millisecond))
	m.book(1, 1, 0, 1)
	time.Sleep(250 * time.Millisecond)
	m.book(1, 2, time.Second, 2) // the clock stands for the second
	m.hold(500 * time.Millisecond)
	time.Sleep(520 * time.Millisecond)
	if r := m.levels(); r.State.Level[1].Level > 2.01 {
		m.failf("the window has %v, want no call of more than its length ago", r.State.Level[1].Level)
	}

	m = e.mirror(pace, moving(1, time.Hour))
	m.book(1, 1, 0, 1)
	booked := m.book(1, 1, 2*time.Hour, 1)
	if len(booked.Charges) == 0 {
		return
	}
	time.Sleep(10 * time.Millisecond)
	r := m.hold(30 * time.Minute)
	if in, _ := r.State.Due(booked.Charges[0].Place); in > time.Hour || in < time.Hour-time.Minute {
		m.failf("a hold of half an hour, and a place is due in %v, want what is left of the hour", in)
	}
}

func (e *exam) fixedWindows() {
	const w = 320 * time.Millisecond
	m := e.mirror(fixed(3, w))
	sent := time.Now()
	first := m.book(1, 1, 0, 1)
	arrived := time.Now()
	time.Sleep(w / 2)
	if r := m.book(1, 2, 0, 2); r.State.At-first.State.At >= w*9/10 {
		return // the store is so slow that this may be another window: a call near the end counts in both
	}
	second := m.opens(sent, arrived, w)
	// All of the window has ended, not only its first call.
	m.book(1, 2, 0, 2)
	m.opens(second, time.Now(), w)
	m = e.mirror(fixed(3, time.Hour))
	m.book(2, 1, 0, 1)
	m.book(2, 1, 0, 0)
	m.book(1, 1, 0, 1)
	m.settle(1, 0)
	m.levels(2)
	m.book(1, 1, 0, 1)
	m.book(1, 1, 0, 0)
	if r := m.levels(3); time.Duration(r.State.Level[0].Ret) < time.Hour-time.Minute {
		m.failf("the window ends in %v, want an hour", time.Duration(r.State.Level[0].Ret))
	}
	// A hold that is over when a window begins does not move its end.
	m = e.mirror(fixed(3, time.Hour), moving(100, time.Minute))
	only := func(cost leak.Units) {
		m.Helper()
		m.do(func([]leak.Charge) leak.Op {
			return leak.Op{Action: leak.Book, Costs: []leak.Units{cost}, Wait: time.Hour}
		})
	}
	only(leak.Units{0, 1})
	m.hold(20 * time.Millisecond)
	time.Sleep(30 * time.Millisecond)
	only(leak.Units{1, 0})
	time.Sleep(5 * time.Millisecond)
	only(leak.Units{1, 0})
	m.levels(2)
	// Nor does it keep any of the window after its end.
	m = e.mirror(fixed(3, w), leak.Limit{Name: "leaky", Unit: 1, Capacity: 1, Rate: 50})
	only(leak.Units{0, 1})
	only(leak.Units{0, 1}) // the hold keeps it from going, and the dial stands
	m.hold(40 * time.Millisecond)
	time.Sleep(60 * time.Millisecond)
	only(leak.Units{1, 0})
	time.Sleep(w / 2)
	only(leak.Units{2, 0})
	time.Sleep(w/2 + 5*time.Millisecond)
	only(leak.Units{3, 0})
}

// windowsDisagree has one worker with a long window and another with a short one.
func (e *exam) windowsDisagree() {
	const w = 64 * time.Millisecond
	long := e.mirror(moving(8, time.Hour))
	short := *long
	short.limits = []leak.Limit{moving(5, w)}
	turn := func(from, to *mirror) { to.state, to.at, to.until = from.state.Clone(), from.at, from.until }
	long.book(1, 1, 0, 1)
	turn(long, &short)
	for range 2 { // the key keeps them for the other worker
		time.Sleep(w + tardy)
		short.book(1, 2, 0, 2)
	}
	turn(&short, long)
	long.levels(5)
	long.book(4, 1, 0, 0)
	long.book(3, 1, 0, 1)
	turn(long, &short)
	short.try(3) // beside three of the other worker, if those count still
	time.Sleep(w + tardy)
	short.book(5, 1, 0, 1)
	turn(&short, long)
	if r := long.do(func([]leak.Charge) leak.Op { return leak.Op{} }); r.State.Level[0].Level < 12.99 {
		long.failf("the long window has level %v, want 13 at least", r.State.Level[0].Level)
	}
}
