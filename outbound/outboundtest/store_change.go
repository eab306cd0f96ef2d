package outboundtest

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var changeCases = []storeCase{
	{sentence: "the step is carried out by the limits that are in force, and the reply brings them", check: checkOneSet},
	{sentence: "limits that were set are in force for all, and levels stay", check: checkReplaces},
	{sentence: "limits of a higher version count, whoever starts later, and limits without one take that in force", check: checkVersions},
	{sentence: "Replace does nothing if Number is not that of the limits in force, and equal limits change nothing", check: checkRaces},
	{sentence: "a step by limits with other units, names or kinds does nothing", check: checkStale},
	{sentence: "a limit of another kind is another limit", check: checkOtherKind},
	{sentence: "to calls from before a change more is charged, and what the limits that stayed can prove comes back", check: checkOlderCharges},
	{sentence: "reservations of the next second stand, however often limits are set", check: checkOften},
	{sentence: "after a change reservations later than a second are void", check: checkVoids},
}

// inForce looks at a key as a process without a number does, and checks the reply.
func (e *exam) inForce(key string, base uint64, number int64, age time.Duration, want ...store.Limit) (yields bool) {
	e.Helper()
	op := &store.Op{Limits: want, Base: base, Age: age}
	r := e.ask(key, op)
	if r.Stale || r.Number != number || !store.Equal(r.Limits, want) || r.State.At-r.Made > 2*time.Hour {
		e.failf("stale %v, number %d, limits %v made at %v, %v ago; want %d, %v", r.Stale, r.Number, r.Limits, r.Made, r.State.At-r.Made, number, want)
	}
	return op.Yields(&r, nil)
}

func checkOneSet(e *exam) {
	p := e.process(slow(5))
	p.age = time.Hour
	p.admit(1)
	old, young := p.beside(slow(10)), p.beside(slow(20))
	// No process needs a step more for it, if its limits count the same.
	old.admit(3)
	old.refuse(2)
	if !store.Equal(old.limits, p.limits) || old.number != p.number {
		e.failf("a process with another capacity has limits %v by number %d, want %v by %d", old.limits, old.number, p.limits, p.number)
	}
	if !e.inForce(p.name, old.base, 1, 2*time.Hour, slow(5)) || !e.inForce(p.name, p.base, 1, 0, slow(5)) {
		e.failf("a process that is older, or has the same limits, does not adopt them")
	}
	if e.inForce(p.name, young.base, 1, 0, slow(5)) {
		e.failf("a younger process with limits of its own adopts others")
	}
	// The program of the younger process is in force from now on, with its time.
	own := store.Op{Action: store.Replace, Own: true, Replacement: young.limits}
	young.number = 1
	young.step(own)
	young.admit(15)
	young.refuse(2)
	if !e.inForce(p.name, p.base, 2, p.age, slow(20)) {
		e.failf("an older process does not adopt the limits of a younger one")
	}
	// What an operator sets leaves the program as it is.
	p.levels(19)
	p.replace(slow(30))
	if !e.inForce(p.name, young.base, 3, 0, slow(30)) {
		e.failf("limits that were set are not adopted by the program that they were set for")
	}
	p.levels(19)
}

func checkVersions(e *exam) {
	of := func(capacity float64, v int32) []store.Limit {
		l := slow(capacity)
		l.Version = v
		return []store.Limit{l}
	}
	p := e.process(of(10, 2)...)
	p.age = time.Hour
	p.admit(4)
	for v, yields := range map[int32]bool{0: true, 1: true, 2: false, 3: false} { // all start later
		own := of(20, v)
		op := store.Op{Limits: own, Base: store.Hash(own)}
		if r := e.ask(p.name, &op); r.Stale || !store.Equal(r.Limits, p.limits) || op.Yields(&r, own) != yields {
			e.failf("version %d yields %v to %v, want %v", v, !yields, r.Limits, yields)
		}
	}
	op := store.Op{Action: store.Replace, Replacement: of(30, 1)}
	if r := p.step(op); r.Stale || r.Number != 1 {
		e.failf("a lower version replaces limits: stale %v, number %d", r.Stale, r.Number)
	}
	for i, c := range []struct{ set, want []store.Limit }{{of(7, 0), of(7, 2)}, {of(7, 3), of(7, 3)}, {of(8, 3), of(8, 3)}} {
		if p.replace(c.set...); !store.Equal(p.limits, c.want) || p.number != int64(i+2) {
			e.failf("%v in force after %v, want %v", p.limits, c.set, c.want)
		}
	}
	p.levels(4)
	if r := p.levels(); r.Expire < 29*24*time.Hour {
		e.failf("limits with a version are kept for %v, want 30 days", r.Expire)
	}
}

func checkReplaces(e *exam) {
	p := e.process(slow(10))
	other := p.beside(slow(10))
	p.admit(6)
	other.levels(6)
	p.replace(slow(8), named(slow(3), 1, "new"))
	if r := other.step(store.Op{}); !r.Stale || !store.Equal(r.Limits, p.limits) {
		e.failf("another process is stale %v and gets %v, want %v", r.Stale, r.Limits, p.limits)
	}
	other.limits, other.number = p.limits, p.number
	other.levels(6, 0)
	if r := other.refuse(9, 1); r.Wait < never {
		e.failf("above the new capacity: refused for %v", r.Wait)
	}
	other.admit(2)
	other.refuse(1, 0)
	p.replace(slow(10))
	p.levels(8)
	p.admit(2)
	p.refuse(1)
}

func checkRaces(e *exam) {
	p := e.process(slow(10))
	p.admit(4)
	op := store.Op{Limits: p.limits, Base: p.base, Action: store.Replace, Replacement: []store.Limit{slow(30)}}
	for _, op.Number = range []int64{0, 2, -1} {
		if r := e.ask(p.name, &op); !r.Stale || r.Number != 1 || !store.Equal(r.Limits, p.limits) {
			e.failf("a replacement of number %d: stale %v, number %d, limits %v", op.Number, r.Stale, r.Number, r.Limits)
		}
	}
	for range 3 {
		if r := p.replace(slow(10)); r.Stale || r.Number != 1 {
			e.failf("equal limits: stale %v, number %d", r.Stale, r.Number)
		}
	}
	p.levels(4)
	op.Number = 1
	if r := e.ask(p.name, &op); r.Stale || r.Number != 2 || !store.Equal(r.Limits, op.Replacement) {
		e.failf("a replacement of the number in force: stale %v, number %d, limits %v", r.Stale, r.Number, r.Limits)
	}
}

// nothings are steps by the limits and the periods of op that would do something. Replace is none
// of them, because it counts by no limits.
func nothings(op store.Op, charges []store.Charge) []store.Op {
	all := []store.Op{
		{},
		{Action: store.Book, Costs: []store.Units{{1}}},
		{Action: store.Book, Unused: charges},
		{Action: store.Book, Move: &charges[0], Costs: []store.Units{{1}}},
		{Action: store.Meter, Costs: []store.Units{{1}}},
		{Action: store.Resume},
		{Reports: []store.Report{{Kind: store.Settled, Charge: &charges[0], Used: store.Units{9}}}},
		{Reports: []store.Report{{Kind: store.Held, Wait: time.Hour}}},
		{Reports: []store.Report{{Kind: store.Paused, Wait: time.Hour}}},
	}
	for i := range all {
		all[i].Limits, all[i].Number, all[i].Base, all[i].Periods = op.Limits, op.Number, op.Base, op.Periods
	}
	return all
}

// checkStale asks by limits that count something else than those in force.
func checkStale(e *exam) {
	p := e.process(slow(10), named(slow(10), 1, "b"))
	p.admit(4)
	for what, limits := range map[string][]store.Limit{
		"one limit less": {slow(10)},
		"one limit more": {slow(10), named(slow(10), 1, "b"), named(slow(10), 2, "c")},
		"another order":  {named(slow(10), 1, "b"), slow(10)},
		"another name":   {slow(10), named(slow(10), 1, "c")},
		"another unit":   {slow(10), named(slow(10), 2, "b")},
		"another kind":   {slow(10), named(moving(10, time.Hour), 1, "b")},
	} {
		for _, number := range []int64{0, 2} {
			for _, op := range nothings(store.Op{Limits: limits, Number: number, Base: store.Hash(limits)}, p.charges[0][:1]) {
				r := e.ask(p.name, &op)
				if !r.Stale || len(r.Charges) > 0 || r.Moved || !store.Equal(r.Limits, p.limits) || r.Number != 1 || r.Base != p.base {
					e.failf("%v by %s: stale %v, %d charges, limits %v by number %d; want %v by 1", op.Action, what, r.Stale, len(r.Charges), r.Limits, r.Number, p.limits)
				}
				if r.Reported && len(op.Reports)+len(op.Unused) > 0 {
					e.Fatalf("the contract says %q: the reports of a stale step were carried out, although no step before it had failed", e.sentence)
				}
			}
		}
	}
	p.levels(4, 4)
	// The report goes with the next step.
	p.settle(0, 3, 3)
	p.levels(3, 3)
}

func checkOtherKind(e *exam) {
	calls := named(slow(10), 0, "calls")
	p := e.process(calls)
	p.admit(6)
	time.Sleep(time.Millisecond)
	for i, l := range []store.Limit{moving(8, time.Hour), fixed(7, time.Hour), calls} {
		p.replace(named(l, 0, "calls"))
		p.levels(0)
		p.admit(float64(6 - i))
	}
	// What may still leave counts in a new limit.
	p = e.process(leaky(2, 1))
	p.admit(2)
	p.reserve(1)
	p.replace(named(moving(10, time.Hour), 0, "new"))
	if level := p.levels().State.Level[0]; level < 1 || level > 3 {
		e.failf("with a call that may still leave a new limit has level %v, want 1 to 3", level)
	}
}

func checkOlderCharges(e *exam) {
	p := e.process(slow(10), named(slow(10), 1, "b"), moving(10, time.Hour))
	first, second, third := p.admit(1), p.admit(1), p.admit(1)
	p.replace(leaky(10, 1./72000), named(slow(12), 1, "b"), moving(9, time.Hour))
	p.levels(3, 3, 3)
	p.settle(third, 0)
	p.levels(3, 2, 2)
	p.settle(second, 4)
	p.levels(6, 5, 5)
	p.back(first)
	if r := p.levels(); r.State.Level[0] < 5.99 {
		e.failf("a limit with another rate has returned units: its level is %v", r.State.Level[0])
	}
}

func checkOften(e *exam) {
	sets := [][]store.Limit{
		{leaky(1, 20)},
		{leaky(2, 20)},
		{leaky(1, 40)},
		{leaky(1, 10), named(slow(5), 1, "b")},
		{leaky(3, 15), moving(1000, time.Hour)},
		{leaky(1, 20)},
	}
	p := e.process(sets[0]...)
	begin := time.Now()
	r := p.book(p.of(1), 10, time.Hour, 10)
	due := make([]time.Duration, len(r.Charges))
	for i := range due {
		due[i] = r.State.At + p.due(&r, i)
	}
	for i := range 60 {
		time.Sleep(5 * time.Millisecond) // 200 times a second
		r := p.replace(sets[(i+1)%len(sets)]...)
		for j, c := range p.charges[0] {
			if in, _ := r.State.Due(c.Place); due[j] > r.State.At && !near(r.State.At+in, due[j]) {
				e.Fatalf("the contract says %q: after %d changes in %v call %d leaves %v later", e.sentence, i+1, time.Since(begin), j, r.State.At+in-due[j])
			}
		}
	}
	p.replace(leaky(1, 20))
	r = p.book(p.of(1), 1, math.MaxInt64, 1)
	if at := r.State.At + p.due(&r, 0); at < due[len(due)-1] {
		e.failf("a call leaves %v before one that was booked earlier", due[len(due)-1]-at)
	}
}

func checkVoids(e *exam) {
	p := e.process(leaky(1, 0.1))
	p.admit(1)
	for range 5 {
		p.reserve(1)
	}
	before := time.Now()
	p.replace(leaky(1, 1))
	r := p.levels()
	if most := store.MaxReplyAge; r.State.Last > most {
		e.failf("the last reservation is %v away, want %v at most", r.State.Last, most)
	}
	// A new call waits by the new limits.
	_, in := p.reserve(1)
	if in > 3*time.Second {
		e.failf("a new call waits %v after %v, want 3s at most", in, time.Since(before))
	}
	p.back(len(p.charges[0]) - 2) // a void one gives nothing back
	if level := p.levels().State.Level[0]; level < 0.5 {
		e.failf("level %v after a void reservation was returned", level)
	}
}
