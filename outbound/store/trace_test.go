package store

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// trace draws what workers ask of one key, and plays it.
type trace struct {
	*rand.Rand
	now     time.Duration
	workers [][]Limit
	calls   []call // the latest
	epoch   int64  // the newest that the processes know
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

// someWorkers share a key: two releases with other numbers, and one with other limits.
func someWorkers() [][]Limit {
	calls, tokens := Limit{Capacity: 5, Rate: 10, Window: time.Second, N: 10}, Limit{Name: "tokens", Unit: 1, Capacity: 200, Rate: 30}
	window := Limit{Name: "window", Kind: Window, Capacity: 40, Rate: 4, Window: 10 * time.Second}
	first := Limit{Name: "first", Kind: Fixed, Capacity: 30, Rate: 2, Window: 15 * time.Second}
	hour := Limit{Name: "hour", Kind: Hourly, Capacity: 900}
	faster := calls
	faster.Capacity, faster.Rate = 8, 20
	return [][]Limit{
		{calls, tokens, window, hour},
		{faster, tokens, window, hour},
		{tokens, first, {Capacity: 5, Rate: 20}},
	}
}

// unix returns the Unix time.
func (t *trace) unix() time.Duration { return t.now + 5e17 }

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
	op := Op{Limits: s.Limits, Number: s.Number, Base: Hash(own), Age: time.Duration(t.ExpFloat64() * 1e10)}
	if len(s.Limits) == 0 || t.IntN(50) == 0 { // it has not learned of others yet
		op.Limits, op.Number = own, 0
	}
	for range op.Limits {
		op.Periods = append(op.Periods, periodOf(t.unix(), 3600))
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
		op.Action, op.Own, op.Replacement = Replace, true, own
	default:
		op.Action, op.Replacement = Replace, slices.Clone(t.workers[t.IntN(len(t.workers))])
		l := &op.Replacement[0]
		l.Capacity = float64(1 + t.IntN(3))
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
			op.Unused = append(op.Unused, *c)
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
		if c := t.calls[t.IntN(len(t.calls))]; Same(c.limits, limits) {
			return &c.Charge
		}
	}
	return nil
}

func (t *trace) report(limits []Limit) Report {
	r := Report{Kind: ReportKind(t.IntN(6)), Charge: t.latest(limits), Epoch: t.epoch - t.Int64N(2)}
	switch r.Kind {
	case Settled:
		if r.Charge == nil {
			return Report{Kind: Succeeded, Epoch: t.epoch}
		}
		if r.Used = r.Charge.N; t.IntN(2) == 0 {
			r.Used = t.units(limits)
		}
	case Remaining:
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

// tidy returns s without what its bytes need not tell apart.
func (s Stored) tidy() Stored {
	s = s.Clone()
	s.State.Unix, s.trusted = 0, false
	for i := range s.State.Parts {
		if len(s.State.Parts[i].Slots) == 0 {
			s.State.Parts[i].Slots = nil
		}
	}
	return s
}

// A key survives its bytes and JSON after each step of random traces, and each step does on the
// copy what it does on the key.
func TestStored_SurvivesItsBytes(t *testing.T) {
	longest := 0
	for seed := range uint64(10) {
		tr := newTrace(seed, someWorkers()...)
		var s Stored
		for step := range 1000 {
			op := tr.step(&s)
			r := op.ApplyAt(&s, tr.now, tr.unix())
			tr.heard(&op, &r)
			if r.Corrupt {
				t.Fatalf("seed %d, step %d: corrupt", seed, step)
			}
			b, _ := s.MarshalBinary()
			longest = max(longest, len(b))
			var ofBytes, ofJSON Stored
			if err := ofBytes.UnmarshalBinary(b); err != nil || !reflect.DeepEqual(ofBytes.tidy(), s.tidy()) {
				t.Fatalf("seed %d, step %d: %v\n%+v\n%+v", seed, step, err, s.tidy(), ofBytes.tidy())
			}
			text, err := json.Marshal(s)
			if err == nil {
				err = json.Unmarshal(text, &ofJSON)
			}
			if err != nil || !reflect.DeepEqual(ofJSON.tidy(), s.tidy()) {
				t.Fatalf("seed %d, step %d: %v\n%+v\n%+v", seed, step, err, s.tidy(), ofJSON.tidy())
			}
			if again := s.Clone(); step%7 == 0 {
				next := Op{Limits: s.Limits, Number: s.Number, Periods: op.Periods[:0], Action: Book, Costs: []Units{{1, 1, 1, 1}}, Wait: time.Minute}
				for range s.Limits {
					next.Periods = append(next.Periods, periodOf(tr.unix(), 3600))
				}
				want, got := next.ApplyAt(&again, tr.now+time.Second, tr.unix()+time.Second), next.ApplyAt(&ofBytes, tr.now+time.Second, tr.unix()+time.Second)
				if !reflect.DeepEqual(want, got) {
					t.Fatalf("seed %d, step %d: %+v\n%+v", seed, step, want, got)
				}
			}
		}
	}
	t.Logf("at most %d bytes", longest)
}

// A store need not write what has not changed: a key that is written at each step, and one that is
// written only if it has changed, answer the same.
func TestApply_UnchangedNeedsNoWrite(t *testing.T) {
	left := 0
	for seed := range uint64(20) {
		traces := [2]*trace{newTrace(seed, someWorkers()...), newTrace(seed, someWorkers()...)}
		var keys [2]Stored
		var until time.Duration // when the key that was not written may go
		for step := range 2000 {
			var replies [2]Reply
			var op Op
			for i, tr := range traces {
				tr.steady = true
				op = tr.step(&keys[i])
				replies[i] = op.ApplyAt(&keys[i], tr.now, tr.unix())
				tr.heard(&op, &replies[i])
			}
			now, a, b := traces[0].now, &replies[0], &replies[1]
			if keys[1].Set {
				b.Expire -= keepSet
			}
			if b.Changed {
				until = now + b.Expire
			} else if d := now + b.Expire - until; b.Expire > 0 && d > time.Microsecond {
				t.Fatalf("seed %d, step %d: the key may go %v too soon: %+v\n%+v\n%+v", seed, step, d, op, b, keys[1])
			}
			if !a.Changed {
				keys[0].State.Keep(keys[0].State.Advance(keys[0].Limits, now))
				left++
			}
			near := func(a, b time.Duration) bool { return a-b < 20*time.Microsecond && b-a < 20*time.Microsecond }
			same := a.Refused == b.Refused && a.Limit == b.Limit && len(a.Charges) == len(b.Charges) && a.Stale == b.Stale && a.Number == b.Number && a.Full == b.Full &&
				near(a.Wait, b.Wait) && near(a.State.Dial(), b.State.Dial()) && near(a.State.Rem, b.State.Rem) && near(a.State.Last, b.State.Last)
			for i := range a.State.Level {
				same = same && math.Abs(a.State.Level[i]-b.State.Level[i]) <= 1e-3+1e-9*math.Abs(a.State.Level[i])
			}
			if !same {
				t.Fatalf("seed %d, step %d, %+v: the one that writes says\n%+v, and the other\n%+v", seed, step, op, a, b)
			}
		}
	}
	if left < 5000 {
		t.Errorf("%d steps left the key as it was", left)
	}
}
