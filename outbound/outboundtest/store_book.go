package outboundtest

import (
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var bookCases = []storeCase{
	{sentence: "order of booking is order of departure", check: checkBooks},
	{sentence: "no reservation is sooner than After", check: checkAfter},
	{sentence: "a process behind the lead catches up, at most 100 ms at a time or 4 times as far again as its first reservation, or as its Weight", check: checkClaims},
	{sentence: "a process has a share of the claims as large as its Weight", check: checkWeights},
	{sentence: "of what a window frees at one time each process has a share as large as its Weight", check: checkShares},
	{sentence: "a call with a Headroom leaves only while as much stays free in each of its limits", check: checkHeadroom},
	{sentence: "the last booking is undone as if it had never been, and no other", check: checkUndoes},
	{sentence: "Move undoes the last booking and books again, or does nothing", check: checkMoves},
	{sentence: "Slots asks for the parts of the state", check: checkSlots},
	{sentence: "Update changes nothing of op", check: checkKeepsOp},
}

// within checks that a time is at most so long, and at most this much shorter: a slow store's trips
// take some of it.
func (e *exam) within(what string, d, want, shorter time.Duration) {
	e.Helper()
	const low = 10 * time.Millisecond // a store that estimates its clock may take its time for so much earlier
	if d > want || d < want-shorter-low {
		e.failf("%s is %v away, want %v", what, d, want)
	}
}

func checkBooks(e *exam) {
	begin := time.Now()
	p := e.process(leaky(2, 0.1))
	p.admit(2)
	r := p.step(store.Op{Action: store.Book, Costs: []store.Units{{1}, {2}, {0.5}, {1}}, Wait: time.Hour, Horizon: 36 * time.Second})
	if len(r.Charges) != 3 {
		e.Fatalf("the contract says %q: %d calls are booked, want 3, as far as the horizon", e.sentence, len(r.Charges))
	}
	for i, want := range []time.Duration{10 * time.Second, 30 * time.Second, 35 * time.Second} {
		e.within("a reservation", p.due(&r, i), want, time.Since(begin))
	}
	e.within("a call that waits for none of them", p.refuse(1).Wait, 45*time.Second, time.Since(begin))
	// If the first call of a booking would wait too long, it is refused, and none is booked.
	p.step(store.Op{Action: store.Book, Costs: []store.Units{{1}, {1}}, Wait: 10 * time.Second, Horizon: time.Hour})
	if r := p.levels(); r.State.IDs != 4 {
		e.failf("%d bookings after one of a call and one of three", r.State.IDs)
	}
}

func checkAfter(e *exam) {
	begin := time.Now()
	p := e.process(leaky(3, 0.1))
	book := func(op store.Op, dues ...time.Duration) {
		e.Helper()
		op.Action, op.Wait = store.Book, time.Hour
		r := p.step(op)
		if len(r.Charges) != len(dues) {
			e.Fatalf("the contract says %q: %d calls are booked, want %d", e.sentence, len(r.Charges), len(dues))
		}
		for i, want := range dues {
			e.within("a reservation", p.due(&r, i), want, time.Since(begin))
		}
	}
	// Two fit together there, and the third is 10 s behind them.
	book(store.Op{Costs: []store.Units{{2}, {1}, {1}}, Horizon: time.Hour, After: time.Minute}, time.Minute, time.Minute, 70*time.Second)
	// A call that comes now leaves after them. If reservations are further away, After changes nothing.
	book(store.Op{Costs: []store.Units{{1}}, After: time.Second}, 80*time.Second)
	// A reservation that is too far away is refused, and changes nothing.
	r := p.step(store.Op{Action: store.Book, Costs: []store.Units{{1}}, Wait: 2 * time.Minute, After: time.Hour})
	if !r.Refused || len(r.Charges) > 0 {
		e.failf("a call after an hour is booked within two minutes")
	}
	e.within("a refused call", r.Wait, time.Hour+time.Millisecond, time.Second)
	book(store.Op{Costs: []store.Units{{1}}}, 90*time.Second)
}

// claim books ten calls with a claim: the first however far away, the rest within the horizon. It
// checks how many are booked, and the next claim.
func (p *process) claim(claim, weight float64, horizon time.Duration, booked int, next float64) {
	p.Helper()
	op := store.Op{Action: store.Book, Wait: math.MaxInt64, Horizon: horizon, Claim: claim, Weight: weight}
	for range 10 {
		op.Costs = append(op.Costs, p.of(1))
	}
	if r := p.step(op); len(r.Charges) != booked || r.Claim != next {
		p.failf("a claim of %v within %v has %d bookings and is %v now; want %d and %v", claim, horizon, len(r.Charges), r.Claim, booked, next)
	}
}

func checkClaims(e *exam) {
	// Reservations are 10 s apart, so that it does not matter how long trips take.
	p := e.process(leaky(1, 0.1))
	p.claim(0, 0, 0, 1, 0)
	p.claim(math.Inf(1), 0, time.Hour, 10, 10) // the first to claim anything leads
	p.claim(10, 0, 0, 1, 11)                   // and has no one to catch up with
	p.claim(math.Inf(1), 0, time.Hour, 10, 11) // a backlog that begins is level, and does not raise the lead
	p.claim(9, 0, 0, 2, 11)                    // two behind
	p.claim(1, 0, 0, 10, 11)                   // ten behind, and its first is minutes away
	p.claim(12, 0, 0, 1, 11)                   // of another life, which begins
	for _, none := range []float64{0, -1, math.Inf(-1), math.NaN()} {
		p.claim(none, 0, 0, 1, 0)
	}
	p.claim(11, 0, 0, 1, 12) // none of those has raised the lead
	p.step(store.Op{Action: store.Resume})
	p.claim(12, 0, 0, 1, 1) // a new life

	// Others have claimed nine more by one call, and the first reservation is 10 s away.
	p = e.process(leaky(1, 0.1))
	p.claim(math.Inf(1), 0.1, 0, 1, 10)
	time.Sleep(100 * time.Millisecond)
	p.claim(1, 0, 0, 4, 5) // 10 to 40 s away
	p = e.process(leaky(1, 0.1))
	p.claim(math.Inf(1), 0.01, 0, 1, 100)
	time.Sleep(100 * time.Millisecond)
	p.claim(40, 8, 0, 8, 41) // 10 to 80 s away

	// A process whose first reservation is near catches up by 100 ms at most.
	p = e.process(leaky(1, 25))
	p.claim(math.Inf(1), 0, time.Hour, 10, 10)
	time.Sleep(400 * time.Millisecond)
	p.claim(1, 0, 0, 3, 4) // at 0, 40 and 80 ms from its first
}

func checkWeights(e *exam) {
	p := e.process(leaky(1, 0.1))
	p.claim(math.Inf(1), 1, time.Hour, 10, 10)
	p.claim(4, 2, time.Hour, 10, 9) // ten calls of half a claim each
	p.claim(9, 2, 0, 2, 10)
	p.claim(10, 0.5, 0, 1, 12)
	for _, none := range []float64{0, -1, math.NaN()} { // a weight that is not above 0 is 1
		p.claim(10, none, 0, 2, 12)
	}
}

func checkShares(e *exam) {
	p := e.process(moving(100, time.Hour))
	p.admit(100)
	book := func(bid *store.Bid, weight float64, calls, booked int, share float64) {
		e.Helper()
		op := store.Op{Action: store.Book, Costs: slices.Repeat([]store.Units{p.of(1)}, calls), Wait: 90 * time.Minute, Horizon: 90 * time.Minute, Weight: weight, Bid: *bid}
		r := p.step(op)
		if *bid = r.Bid; len(r.Charges) != booked || math.Abs(bid.Share-share) > 1e-6 {
			e.failf("%d of %d calls of weight %v are booked, and the share has %v more; want %d and %v", len(r.Charges), calls, weight, bid.Share, booked, share)
		}
	}
	var light, heavy store.Bid
	book(&light, 1, 1, 1, 99) // no other process waits as yet
	book(&heavy, 3, 1, 1, 74)
	book(&light, 1, 100, 24, 0)
	book(&heavy, 3, 100, 74, 0)
}

func checkHeadroom(e *exam) {
	p := e.process(slow(10), moving(100, time.Hour), fixed(1, time.Hour))
	op := store.Op{Action: store.Book, Headroom: 0.3}
	for range 12 {
		op.Costs = append(op.Costs, store.Units{1, 10, 0})
	}
	if r := p.step(op); len(r.Charges) != 7 || !r.Refused || r.Wait < 50*time.Minute {
		e.failf("%d calls leave 3 of 10 units, and the next waits %v; want 7, and an hour", len(r.Charges), r.Wait)
	}
	if op.Costs = op.Costs[:1]; len(p.step(op).Charges) > 0 {
		e.failf("a call leaves 2 of 10 units")
	}
	op.Costs = []store.Units{{0, 0, 1}} // a limit of 1 keeps nothing free
	if len(p.step(op).Charges) != 1 {
		e.failf("a call does not leave, by a limit of 1")
	}
	p.admit(3, 30, 0)
	p.levels(10, 100, 1)
}

func checkUndoes(e *exam) {
	p := e.process(slow(1))
	p.admit(1)
	first, _ := p.reserve(1)
	second, _ := p.reserve(1)
	p.levels(3)
	// It is not the last. Its time is promised to no other call, but after a return other calls would
	// overtake.
	p.back(first)
	p.levels(3)
	p.back(second)
	p.levels(2)
	p.back(second) // its process has marked it
	p.levels(2)
	begin := time.Now()
	third, in := p.reserve(1)
	e.within("a call that is booked again", in, 2*36000*time.Second, time.Since(begin)+time.Minute)
	if old, c := p.charges[0][second], p.charges[0][third]; c.ID <= old.ID {
		e.failf("its number is %d, and that of a booking before was %d", c.ID, old.ID)
	}
	// The bookings of one step are returned together, as those of several.
	fourth, _ := p.reserve(1)
	p.levels(4)
	p.back(third, fourth)
	p.levels(2)
	// A settle that adds forbids to undo, and one that returns does not. Then the units are returned,
	// because they are promised to no other call, and the reservation stays.
	fifth, _ := p.reserve(1)
	p.settle(0, 2)
	last := p.levels(4).State.Last
	p.back(fifth)
	if r := p.levels(3); last-r.State.Last > time.Minute {
		e.failf("after a settle that adds the last reservation was undone")
	}
	p = e.process(slow(10))
	p.admit(4)
	sixth := p.admit(5)
	p.settle(0, 3)
	p.levels(8)
	p.back(sixth)
	p.levels(3)
}

// move moves a booking, and returns the index of the new one, or -1.
func (p *process) move(call int, op store.Op) int {
	p.Helper()
	r := p.do(func(charges []store.Charge) store.Op {
		do := op
		do.Action, do.Move = store.Book, &charges[call]
		do.Reports = slices.Clone(op.Reports)
		for i := range do.Reports { // of the first call
			do.Reports[i].Charge = &charges[0]
		}
		return do
	})
	if r.Moved != (len(r.Charges) > 0) {
		p.failf("moved %v, and %d calls are booked", r.Moved, len(r.Charges))
	}
	if !r.Moved {
		return -1
	}
	return len(p.charges[0]) - 1
}

func checkMoves(e *exam) {
	begin := time.Now()
	p := e.process(leaky(1, 0.001))
	p.admit(1)
	first, _ := p.reserve(1)
	second, _ := p.reserve(1)
	due := func(call int, want time.Duration) {
		e.Helper()
		r := p.levels()
		in, _ := r.State.Due(p.charges[0][call].Place)
		e.within("the call", in, want, time.Since(begin)+time.Millisecond)
	}
	due(second, 2000*time.Second)
	costs := []store.Units{{0.25}}
	if p.move(first, store.Op{Costs: costs, Wait: time.Hour}) >= 0 {
		e.failf("a booking that is not the last was moved")
	}
	// It waits for the returned time, whatever Wait is.
	third := p.move(second, store.Op{Costs: costs})
	if third < 0 {
		e.Fatalf("the contract says %q: the last booking was not moved", e.sentence)
	}
	due(third, 1250*time.Second)
	if p.move(second, store.Op{Costs: costs}) >= 0 {
		e.failf("a booking that was moved was moved again")
	}
	if p.move(third, store.Op{Costs: []store.Units{{2}}}) >= 0 {
		e.failf("a booking was moved for a cost above the capacity")
	}
	if p.move(third, store.Op{Costs: costs, Reports: []store.Report{{Kind: store.Settled, Used: store.Units{1.5}}}}) >= 0 {
		e.failf("a booking was moved in a step whose settle adds")
	}
	p.levels(2.75)
	// The settle was carried out. It forbids to move what was booked before.
	if p.move(third, store.Op{Costs: costs}) >= 0 {
		e.failf("a booking was moved after a settle that adds")
	}
	// After a Resume the booking is void.
	p = e.process(leaky(1, 0.001))
	p.admit(1)
	call, _ := p.reserve(1)
	p.step(store.Op{Action: store.Resume})
	if p.move(call, store.Op{Costs: costs}) >= 0 {
		e.failf("a void reservation was moved")
	}
	p.levels(1)
}

func checkSlots(e *exam) {
	p := e.process(slow(10), moving(10, time.Hour), fixed(10, time.Hour))
	p.book(p.of(2), 1, 0, 1)
	r := p.step(store.Op{Action: store.Book, Slots: true, Costs: []store.Units{p.of(3)}})
	if len(r.State.Parts) != 3 {
		e.Fatalf("the contract says %q: there are %d parts of 3 limits", e.sentence, len(r.State.Parts))
	}
	units := 0.
	for _, slot := range r.State.Parts[1].Slots {
		units += slot.Units
	}
	if units != 5 || r.State.Parts[2].Units != 5 {
		e.failf("after calls of 2 and 3 the parts are %+v", r.State.Parts)
	}
	if r := p.step(store.Op{Action: store.Book, Slots: true, Costs: []store.Units{p.of(9)}}); len(r.State.Parts) != 3 {
		e.failf("with a refusal there are %d parts", len(r.State.Parts))
	}
}

// checkKeepsOp compares a step with what it was.
func checkKeepsOp(e *exam) {
	key, limits := e.key(), []store.Limit{slow(100), named(slow(50), 1, "b")}
	booked := e.ask(key, &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1, 1}, {2, 2}, {3, 3}, {4, 4}}, Wait: time.Hour, Horizon: time.Hour}).Charges
	if len(booked) != 4 {
		e.Fatalf("the contract says %q: %d of four calls are booked, and all fit", e.sentence, len(booked))
	}
	charges := slices.Clone(booked)
	op := &store.Op{
		Limits: limits, Action: store.Book, Costs: []store.Units{{5, 5}}, Wait: time.Hour, Unused: charges[2:3], Move: &charges[3],
		Reports: []store.Report{
			{Kind: store.Settled, Charge: &charges[0], Used: store.Units{0, 0}},
			{Kind: store.Refused, Charge: &charges[1], Wait: time.Millisecond, Epoch: charges[1].Epoch},
		},
	}
	was := *op
	was.Costs, was.Reports, was.Unused = slices.Clone(op.Costs), slices.Clone(op.Reports), slices.Clone(op.Unused)
	e.ask(key, op)
	if !reflect.DeepEqual(*op, was) {
		e.failf("it was %+v\nand is %+v", was, *op)
	}
	if !reflect.DeepEqual(charges, booked) {
		e.failf("the charges were %+v\nand are %+v", booked, charges)
	}
}
