package outboundtest

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var windowCases = []storeCase{
	{sentence: "any n leave in one burst, and never more than n in any interval of a window's length", check: checkWindows},
	{sentence: "what a call has not used of a window comes back whole", check: checkWindowReturns},
	{sentence: "a window ages in a hold, lets go after it what has aged, and makes later reservations void", check: checkWindowsHeld},
	{sentence: "a fixed window begins with the first call after the last one", check: checkFixedWindows},
	{sentence: "a fixed window counts until a window after its last call, if it is unknown when it began", check: checkUnsureWindows},
}

// tardy is by how much a store may be late with capacity that it has announced.
const tardy = 100 * time.Millisecond

// try books calls if they can leave now.
func (p *process) try(costs ...float64) store.Reply {
	p.Helper()
	op := store.Op{Action: store.Book}
	for _, c := range costs {
		op.Costs = append(op.Costs, p.of(c))
	}
	return p.step(op)
}

// opens asks for one call until it is admitted. That must not be before a time from sent on, and
// not much after that time from arrived on.
func (p *process) opens(sent, arrived time.Time, in time.Duration) (first time.Time) {
	p.Helper()
	for {
		asked := time.Now()
		r := p.try(1)
		switch {
		case len(r.Charges) > 0:
			if took := time.Since(sent); took < in {
				p.failf("a call more than fits left %v after the others, want %v at least", took, in)
			}
			return asked
		case asked.Sub(arrived) > in+tardy:
			p.Fatalf("the contract says %q: no call was admitted for %v, want %v", p.sentence, asked.Sub(arrived), in)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func checkWindows(e *exam) {
	begin := time.Now()
	p := e.process(moving(5, time.Hour))
	p.book(p.of(1), 5, 0, 5)
	r := p.refuse(1)
	e.within("the next call", r.Wait, time.Hour, time.Since(begin))
	if r.Limit != 0 {
		e.failf("refused by limit %d", r.Limit)
	}
	p.levels(5) // a refusal and a look change nothing
	p.levels(5)
	_, in := p.reserve(2)
	e.within("the next call", in, time.Hour, time.Since(begin))

	const w = 256 * time.Millisecond
	p = e.process(moving(4, w))
	sent := time.Now()
	p.admit(1)
	arrived := time.Now()
	time.Sleep(w / 2)
	p.book(p.of(1), 3, 0, 3)
	p.opens(sent, arrived, w)
	for range 4 { // what the first one has left is taken, and the three later ones follow
		p.try(1)
		time.Sleep(w / 4)
	}
}

func checkWindowReturns(e *exam) {
	p := e.process(moving(5, time.Hour))
	p.book(p.of(1), 5, 0, 5)
	for _, call := range []int{2, 0, 4} { // also one that is neither the first nor the last
		p.settle(call, 0)
		p.levels(4)
		p.admit(1)
		p.refuse(1)
	}
	p.settle(1, 0.25)
	p.levels(4.25)
	p.settle(3, 3)
	p.levels(6.25)
	// A booking that is undone is as if it had never been.
	p = e.process(moving(5, time.Hour))
	p.admit(5)
	call, _ := p.reserve(2)
	p.levels(7)
	p.back(call)
	if r := p.levels(5); r.State.Last > 0 {
		e.failf("the last reservation is %v away, want none", r.State.Last)
	}
}

func checkWindowsHeld(e *exam) {
	p := e.process(leaky(1, 20), moving(3, 640*time.Millisecond))
	p.admit(1)
	time.Sleep(250 * time.Millisecond)
	p.book(p.of(1), 2, time.Second, 2) // the clock stands for the second
	p.hold(500 * time.Millisecond)
	time.Sleep(520 * time.Millisecond)
	if level := p.levels().State.Level[1]; level > 2.01 {
		e.failf("the window has level %v, want no call of more than its length ago", level)
	}
	// The window does not space calls.
	p = e.process(moving(4, time.Hour), named(moving(100, 100*time.Hour), 0, "long"))
	p.admit(1)
	p.hold(100 * time.Millisecond)
	time.Sleep(110 * time.Millisecond)
	p.levels(1, 1)
	p.book(p.of(1), 3, 0, 3)
	p.refuse(1)
	// What is reserved for later than a second after the hold is void, and can be returned.
	begin := time.Now()
	p = e.process(leaky(1, 0.001), moving(2, time.Hour))
	p.admit(1)
	time.Sleep(store.BookingGrace + 10*time.Millisecond) // what leaves less than that before a hold does not age
	void, _ := p.reserve(1)
	p.hold(2 * time.Hour)
	_, in := p.reserve(1) // the first call has aged meanwhile
	e.within("a call after a reservation that is void", in, 2*time.Hour+1001*time.Second, time.Since(begin))
	_, in = p.reserve(1)
	e.within("a call a window after a reservation that is void", in, 3*time.Hour+1000*time.Second, time.Since(begin))
	before := p.levels().State.Level[1]
	p.back(void)
	if level := p.levels().State.Level[1]; level != before-1 {
		e.failf("the window has level %v after a void reservation was returned, want %v", level, before-1)
	}
}

func checkFixedWindows(e *exam) {
	const w = 640 * time.Millisecond
	p := e.process(fixed(3, w))
	sent := time.Now()
	first := p.try(1)
	arrived := time.Now()
	time.Sleep(w / 2)
	if r := p.try(1, 1); r.State.At-first.State.At < w*9/10 { // else the store is so slow that this may be another window
		if len(r.Charges) != 2 {
			e.Fatalf("the contract says %q: %d calls of two are booked beside one, want 2", e.sentence, len(r.Charges))
		}
		// All of the window ends, not only its first call.
		p.opens(sent, arrived, w)
		p.book(p.of(1), 2, 0, 2)
		p.refuse(1)
	}
	begin := time.Now()
	p = e.process(fixed(3, time.Hour))
	p.admit(2)
	p.refuse(2)
	p.admit(1)
	p.settle(1, 0)
	p.levels(2)
	p.admit(1)
	r := p.refuse(1)
	e.within("the end", r.Wait, time.Hour, time.Since(begin))
	p.levels(3)
	// It reserves nothing beyond its end.
	e.within("the end", p.book(p.of(1), 1, 2*time.Hour, 0).Wait, time.Hour, time.Since(begin))
}

// checkUnsureWindows returns the first call of a window. At the API the window then begins with the
// second, and a window after the first it is still the same.
func checkUnsureWindows(e *exam) {
	const w = 280 * time.Millisecond
	for _, undo := range []func(p *process){
		func(p *process) { p.settle(0, 0) },
		func(p *process) { p.back(0) },
		func(p *process) { p.hold(w / 8) },
	} {
		p := e.process(fixed(2, w))
		first := p.try(1)
		time.Sleep(w / 2)
		second := p.try(1)
		if second.State.At-first.State.At >= w*9/10 {
			return // the store is too slow
		}
		undo(p)
		time.Sleep(w*5/8 - 10*time.Millisecond)
		if r := p.try(1, 1); r.State.At-second.State.At < w*9/10 && len(r.Charges) > 1 {
			e.failf("two calls left %v after one, in a window of 2 that began with that", r.State.At-second.State.At)
		}
	}
}
