package outboundtest

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// mirror is a key of the store under test, and what [store.Op.ApplyAt] makes of the same steps at
// the times of the store's replies. Each step is compared.
type mirror struct {
	name    string
	charges [2][]store.Charge // those of the store, and of the arithmetic
	state   store.Stored
	at      time.Duration // the store's time of the newest reply
	until   time.Duration // the store's time at which it may forget the key
	unix    time.Duration // the newest Unix time
	ends    []int64       // of the periods of its calendars, as Unix times in seconds
	failed  bool
	silent  bool // a failure is not reported, because the test tries again
}

// process is a process that uses a key of the store under test.
type process struct {
	*exam
	*mirror
	limits []store.Limit
	number int64
	base   uint64
	age    time.Duration
}

// process returns the first process that uses a key.
func (e *exam) process(limits ...store.Limit) *process {
	return &process{exam: e, mirror: &mirror{name: e.key()}, limits: limits, base: store.Hash(limits)}
}

// beside returns a second process that uses the same key.
func (p *process) beside(limits ...store.Limit) *process {
	return &process{exam: p.exam, mirror: p.mirror, limits: limits, base: store.Hash(limits)}
}

// periods returns the periods that a Unix time is in, for each limit.
func (p *process) periods(unix time.Duration) []store.Period {
	i := 0
	for i+3 < len(p.ends) && unix >= time.Duration(p.ends[i+1])*time.Second {
		i++
	}
	all := make([]store.Period, len(p.limits))
	for j := range all {
		if p.limits[j].Kind.Calendar() {
			all[j] = store.Period{Begin: p.ends[i], End: p.ends[i+1], Next: p.ends[i+2]}
		}
	}
	return all
}

// fill gives a step all that a process sends with each.
func (p *process) fill(op *store.Op) {
	op.Limits, op.Number, op.Base, op.Age = p.limits, p.number, p.base, p.age
	if p.ends != nil {
		op.Periods = p.periods(p.unix)
	}
}

// do carries out a step, which is made for the charges of each side.
func (p *process) do(step func(charges []store.Charge) store.Op) store.Reply {
	p.Helper()
	if p.failed {
		return store.Reply{} // all that follows would be wrong as well
	}
	if p.hooks.Reopen != nil {
		p.store = p.hooks.Reopen(p.store)
	}
	op, same := step(p.charges[0]), step(p.charges[1])
	p.fill(&op)
	p.fill(&same)
	got := p.ask(p.name, &op)
	// A store may have forgotten the key, or have kept nothing of steps that changed nothing.
	if born := got.State.Born; got.State.At >= p.until-time.Millisecond && born != p.state.State.Born && (op.Action != store.Resume || got.State.IDs < p.state.State.IDs) {
		p.state = store.Stored{}
	}
	want := same.ApplyAt(&p.state, got.State.At, got.State.Unix)
	p.compare(&op, &got, &want, got.State.At > p.at || got.State.At == p.at && !got.Refused)
	p.at, p.unix = max(p.at, got.State.At), max(p.unix, got.State.Unix)
	p.until = got.State.At + want.Expire
	p.charges[0] = append(p.charges[0], got.Charges...)
	p.charges[1] = append(p.charges[1], want.Charges...)
	if got.Limits != nil && (op.Action == store.Replace || store.Same(p.limits, got.Limits)) {
		p.limits, p.number = got.Limits, got.Number
	}
	return got
}

// near reports whether two times are the same for a store that keeps microseconds.
func near(a, b time.Duration) bool { return a-b < 20*time.Microsecond && b-a < 20*time.Microsecond }

// like reports whether two numbers of units are the same except for rounding.
func like(a, b float64) bool { return math.Abs(a-b) <= 1e-3+1e-9*math.Abs(b) }

// compare compares two replies. A state that is not newer than the one before was remembered, with
// a refusal.
func (p *process) compare(op *store.Op, got, want *store.Reply, fresh bool) {
	p.Helper()
	same := func(what string, ok bool, got, want any) {
		p.Helper()
		if ok || p.failed {
			return
		}
		if p.failed = true; !p.silent {
			p.Fatalf("the contract says %q: after %v of %v, reports %v: %s %v, want %v", p.sentence, op.Action, op.Costs, op.Reports, what, got, want)
		}
	}
	same("stale", got.Stale == want.Stale, got.Stale, want.Stale)
	same("untimely", got.Untimely == want.Untimely, got.Untimely, want.Untimely)
	same("number", got.Number == want.Number, got.Number, want.Number)
	same("limits", store.Equal(got.Limits, want.Limits), got.Limits, want.Limits)
	same("base", got.Base == want.Base, got.Base, want.Base)
	same("made", near(got.Made, want.Made), got.Made, want.Made)
	same("calls booked", len(got.Charges) == len(want.Charges), len(got.Charges), len(want.Charges))
	same("refused", got.Refused == want.Refused, got.Refused, want.Refused)
	same("refused by limit", got.Limit == want.Limit, got.Limit, want.Limit)
	same("moved", got.Moved == want.Moved, got.Moved, want.Moved)
	same("full", got.Full == want.Full, got.Full, want.Full)
	is, should := got.Allotment, want.Allotment
	again := near(is.Again, should.Again)
	is.Again = should.Again
	same("allotment", again && is == should, got.Allotment, should)
	same("claim", math.Abs(got.Claim-want.Claim) < 1e-6, got.Claim, want.Claim)
	x, y := &got.Bid, &want.Bid
	same("bid", near(x.At, y.At) && x.Calls == y.Calls && x.Done == y.Done && x.Left == y.Left && like(x.Share, y.Share), *x, *y)
	if p.failed {
		return
	}
	for i := range got.Charges {
		g, w := &got.Charges[i], &want.Charges[i]
		ok := g.ID == w.ID && g.Prev == w.Prev && g.Number == w.Number && g.N == w.N && g.Settled == w.Settled
		for j := range p.limits {
			ok = ok && like(g.Y[j], w.Y[j]) && like(g.Up[j], w.Up[j])
		}
		ok = ok && near(g.Place, w.Place) && near(g.Before, w.Before) && near(g.Free, w.Free) && near(g.Until, w.Until) && near(g.Born, w.Born)
		same("charge", ok, *g, *w)
	}
	if !fresh {
		return
	}
	g, w := &got.State, &want.State
	same("wait", !got.Refused || near(got.Wait, want.Wait), got.Wait, want.Wait)
	same("life", near(g.Born, w.Born), g.Born, w.Born)
	same("dial", near(g.Dial(), w.Dial()), g.Dial(), w.Dial())
	same("last reservation", near(g.Last, w.Last), g.Last, w.Last)
	same("hold", near(g.Rem, w.Rem), g.Rem, w.Rem)
	same("speed", math.Abs(g.Speed-w.Speed) < 1e-6, g.Speed, w.Speed)
	same("refusals", g.Fails == w.Fails, g.Fails, w.Fails)
	same("reason", g.Why == w.Why, g.Why, w.Why)
	same("number of the last booking", g.Top == w.Top && g.IDs == w.IDs, []int64{g.Top, g.IDs}, []int64{w.Top, w.IDs})
	for i := range p.limits {
		if i < len(p.state.Limits) {
			same("level of "+p.limits[i].Name, like(g.Level[i], w.Level[i]), g.Level[i], w.Level[i])
		}
	}
	if op.Slots {
		same("parts", len(g.Parts) == len(w.Parts), len(g.Parts), len(w.Parts))
		for i := range min(len(g.Parts), len(w.Parts)) {
			same("part", alike(&g.Parts[i], &w.Parts[i]), g.Parts[i], w.Parts[i])
		}
	}
}

// alike reports whether two parts are the same except for rounding.
func alike(a, b *store.Part) bool {
	ok := like(a.Ret, b.Ret) && like(a.Over, b.Over) && like(a.Owed, b.Owed) && like(a.Units, b.Units) && a.Since == b.Since &&
		near(a.Begin, b.Begin) && near(a.End, b.End) && a.Sure == b.Sure && near(a.Skip, b.Skip) && len(a.Slots) == len(b.Slots)
	for i := 0; ok && i < len(a.Slots); i++ {
		ok = near(a.Slots[i].End, b.Slots[i].End) && like(a.Slots[i].Units, b.Slots[i].Units)
	}
	return ok
}

// of returns the units of a call that costs so much of each limit. A single cost is that of all.
func (p *process) of(cost ...float64) (n store.Units) {
	for i := range p.limits {
		if n[i] = cost[0]; len(cost) > 1 {
			n[i] = cost[i]
		}
	}
	return n
}

// step carries out a step that needs no charge.
func (p *process) step(op store.Op) store.Reply {
	p.Helper()
	return p.do(func([]store.Charge) store.Op { return op })
}

// report carries out a report. call is the index of the call that it is about; -1: none.
func (p *process) report(call int, r store.Report) store.Reply {
	p.Helper()
	return p.do(func(charges []store.Charge) store.Op {
		if call >= 0 {
			r.Charge = &charges[call]
			if r.Kind == store.Refused || r.Kind == store.Succeeded {
				r.Epoch = r.Charge.Epoch
			}
		}
		return store.Op{Reports: []store.Report{r}}
	})
}

// settle reports what the call with this index has cost, and marks it as its process does.
func (p *process) settle(call int, cost ...float64) store.Reply {
	p.Helper()
	r := p.report(call, store.Report{Kind: store.Settled, Used: p.of(cost...)})
	for side := range p.charges {
		p.charges[side][call].N, p.charges[side][call].Settled = p.of(cost...), true
	}
	return r
}

// hold holds the key.
func (p *process) hold(d time.Duration) store.Reply {
	p.Helper()
	return p.report(-1, store.Report{Kind: store.Held, Wait: d})
}

// back returns the bookings with these indices, and marks them as their process does.
func (p *process) back(calls ...int) store.Reply {
	p.Helper()
	r := p.do(func(charges []store.Charge) store.Op {
		op := store.Op{Action: store.Book}
		for _, i := range calls {
			op.Unused = append(op.Unused, charges[i])
		}
		return op
	})
	for side := range p.charges {
		for _, i := range calls {
			p.charges[side][i].Settled = true
		}
	}
	return r
}

// admit books a call that leaves now, and returns its index.
func (p *process) admit(cost ...float64) (call int) {
	p.Helper()
	p.book(p.of(cost...), 1, 0, 1)
	return len(p.charges[0]) - 1
}

// refuse asks for a call that is refused.
func (p *process) refuse(cost ...float64) store.Reply {
	p.Helper()
	return p.book(p.of(cost...), 1, 0, 0)
}

// reserve books a call however far away, and returns its index and the time until it leaves.
func (p *process) reserve(cost ...float64) (call int, in time.Duration) {
	p.Helper()
	r := p.book(p.of(cost...), 1, math.MaxInt64, 1)
	return len(p.charges[0]) - 1, p.due(&r, 0)
}

// book books calls of one cost, the first at most wait away and the rest together with it. It
// checks how many of them are booked.
func (p *process) book(n store.Units, calls int, wait time.Duration, booked int) store.Reply {
	p.Helper()
	op := store.Op{Action: store.Book, Wait: wait, Horizon: wait}
	for range calls {
		op.Costs = append(op.Costs, n)
	}
	r := p.step(op)
	if len(r.Charges) != booked || r.Refused != (booked < calls) {
		p.Fatalf("the contract says %q: %d of %d calls of %v are booked within %v, want %d; refused %v", p.sentence, len(r.Charges), calls, n, wait, booked, r.Refused)
	}
	return r
}

// due returns the time until call i of a reply leaves.
func (p *process) due(r *store.Reply, i int) time.Duration {
	in, _ := r.State.Due(r.Charges[i].Place)
	return in
}

// levels looks at the key and checks its levels.
func (p *process) levels(want ...float64) store.Reply {
	p.Helper()
	r := p.step(store.Op{Slots: true})
	if len(r.State.Parts) != len(p.limits) {
		p.Fatalf("the contract says %q: %d parts were asked for, and %d came", p.sentence, len(p.limits), len(r.State.Parts))
	}
	for i, level := range want {
		if got := r.State.Level[i]; math.Abs(got-level) > 0.01 {
			p.failf("limit %d, %q, has level %v, want %v", i, p.limits[i].Name, got, level)
		}
	}
	return r
}

// replace puts limits in force for all, as SetLimits does.
func (p *process) replace(limits ...store.Limit) store.Reply {
	p.Helper()
	return p.step(store.Op{Action: store.Replace, Replacement: limits})
}
