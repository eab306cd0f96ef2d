package leak

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// trace draws what workers ask of one key, and plays it.
type trace struct {
	*rand.Rand
	now     time.Duration
	workers [][]Limit
	calls   []call // the latest
	epoch   int64  // the newest of which the workers have heard
	steady  bool   // the clock does not step back
}

// call is a booking, and the limits by which it counts.
type call struct {
	Charge
	limits []Limit
}

func newTrace(seed uint64, workers ...[]Limit) *trace {
	return &trace{Rand: rand.New(rand.NewPCG(seed, 31)), now: time.Duration(seed)*1e15 - 2e16, workers: workers}
}

// someWorkers share a key, and have two limits in common.
func someWorkers() [][]Limit {
	calls, tokens := Limit{Capacity: 5, Rate: 10, Window: time.Second}, Limit{Name: "tokens", Unit: 1, Capacity: 200, Rate: 30}
	return [][]Limit{
		{calls, tokens},
		{tokens, calls},
		{{Capacity: 8, Rate: 4}, tokens},
		{{Capacity: 5, Rate: 20}, {Name: "hour", Capacity: 900, Rate: 0.25, Window: time.Hour}},
	}
}

// step lets some time pass, and draws what comes next.
func (t *trace) step(s *Stored) Op {
	t.now += time.Duration(t.ExpFloat64() * math.Pow(10, 3+6*t.Float64()))
	switch n := t.IntN(1000); {
	case n < 10:
		t.now += time.Duration(t.ExpFloat64() * 1e12)
	case n < 50 && !t.steady:
		t.now -= time.Duration(t.Int64N(int64(Wobble)))
	case n < 60 && !t.steady:
		t.now -= Wobble + time.Duration(t.ExpFloat64()*1e10)
	}
	own := t.workers[t.IntN(len(t.workers))]
	op := Op{Limits: own, Stamp: s.Stamp}
	if s.Stamp != 0 {
		op.Limits = s.Limits
	}
	if t.IntN(100) == 0 { // it has heard of other limits
		op.Limits, op.Stamp = own, s.Stamp+t.Int64N(2)
	}
	for t.IntN(5) == 0 {
		op.Reports = append(op.Reports, t.report(op.Limits))
	}
	switch n := t.IntN(100); {
	case n < 12:
	case n < 85:
		t.booking(&op)
	case n < 92:
		op.Action, op.Costs = Meter, []Units{t.units(op.Limits)}
	case n < 94:
		op.Action = Resume
	case n < 97:
		op.Action, op.Unset, op.Replacement = Replace, true, own
	default:
		op.Action, op.Replacement = Replace, slices.Clone(t.workers[t.IntN(len(t.workers))])
		l := &op.Replacement[0]
		if l.Capacity = float64(1 + t.IntN(3)); l.Kind != Leaky && !l.Kind.Calendar() {
			l.Rate = l.Capacity / l.Window.Seconds()
		}
	}
	return op
}

func (t *trace) booking(op *Op) {
	op.Action = Book
	op.Wait, op.Horizon = time.Duration(t.ExpFloat64()*1e8), time.Duration(t.ExpFloat64()*1e8)
	for range t.IntN(4) {
		op.Costs = append(op.Costs, t.units(op.Limits))
	}
	if t.IntN(4) == 0 {
		op.Wait = 0
	}
	if t.IntN(4) == 0 {
		op.After = time.Duration(t.ExpFloat64() * 1e8)
	}
	if t.IntN(4) == 0 {
		op.Claim = float64(t.IntN(9))
	}
	if t.IntN(5) == 0 {
		if c := t.latest(op.Limits); c != nil {
			op.Move = c
		}
	}
	for t.IntN(4) == 0 {
		if c := t.latest(op.Limits); c != nil {
			op.Back = append(op.Back, *c)
		}
	}
}

// units are a cost that is mostly small, and now and then more than there can be.
func (t *trace) units(limits []Limit) (n Units) {
	for i := range limits {
		if t.IntN(3) > 0 {
			n[i] = limits[i].Takes(limits[i].Capacity * math.Pow(t.Float64(), 3) * 1.02)
		}
	}
	return n
}

// latest returns a copy of one of the latest calls that count by these limits, or nil.
func (t *trace) latest(limits []Limit) *Charge {
	for range 5 {
		if len(t.calls) == 0 {
			return nil
		}
		if c := t.calls[t.IntN(len(t.calls))]; len(c.limits) == len(limits) && &c.limits[0] == &limits[0] {
			return &c.Charge
		}
	}
	return nil
}

func (t *trace) report(limits []Limit) Report {
	r := Report{Kind: ReportKind(t.IntN(5)), Charge: t.latest(limits), Epoch: t.epoch - t.Int64N(2)}
	switch r.Kind {
	case Settled:
		if r.Charge == nil {
			return Report{Kind: Succeeded, Epoch: t.epoch}
		}
		if r.Used = r.Charge.N; t.IntN(2) == 0 {
			r.Used = t.units(limits)
		}
	case Left:
		r.Used = t.units(limits)
	}
	if t.IntN(2) == 0 {
		r.Wait = time.Duration(t.ExpFloat64() * 2e8)
	}
	if t.IntN(4) == 0 {
		r.MaxWait = time.Duration(t.ExpFloat64() * 1e9)
	}
	r.Reason = uint8(t.IntN(4))
	return r
}

// heard notes what the reply to op says.
func (t *trace) heard(op *Op, r *Reply) {
	t.epoch = r.State.Epoch
	for i := range r.Charges {
		t.calls = append(t.calls, call{r.Charges[i], op.Limits})
	}
	t.calls = t.calls[max(0, len(t.calls)-6):]
}

// copied returns a copy that shares nothing with s which Apply might write to.
func (s *Stored) copied() Stored {
	c := *s
	c.Limits, c.Others = slices.Clone(s.Limits), slices.Clone(s.Others)
	return c
}
