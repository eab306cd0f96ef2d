package store

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
	"unsafe"
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

// Take does what ApplyAt does: two copies of a key, one booked in place and one by an Op, are the
// same after each step of random traces with holds, slow clocks, steps of the clock, and new limits.
func TestTake_DoesWhatApplyDoes(t *testing.T) {
	booked, refused, stale := 0, 0, 0
	for seed := range uint64(20) {
		tr := newTrace(seed, someWorkers()...)
		draw := rand.New(rand.NewPCG(seed, 7))
		var s Stored
		for step := range 1000 {
			op := tr.step(&s)
			r := op.ApplyAt(&s, tr.now, tr.unix())
			tr.heard(&op, &r)
			if step%3 > 0 {
				continue
			}
			next := Op{Limits: s.Limits, Number: s.Number - int64(draw.IntN(20)/19), Action: Book, Costs: []Units{tr.units(s.Limits)}, Wait: time.Duration(draw.ExpFloat64() * 1e8)}
			if draw.IntN(4) > 0 {
				next.Wait = 0
			}
			for range s.Limits {
				next.Periods = append(next.Periods, periodOf(tr.unix(), 3600))
			}
			if now := tr.now; draw.IntN(4) == 0 {
				tr.now += time.Duration(draw.ExpFloat64() * 1e9)
				if draw.IntN(4) == 0 {
					tr.now = now - time.Duration(draw.ExpFloat64()*1e9)
				}
			}
			byOp := s.Clone()
			want := next.ApplyAt(&byOp, tr.now, tr.unix())
			var c Charge
			before := s.Clone()
			var got Taken
			s.Take(next.Number, &next.Costs[0], next.Periods, next.Wait, tr.now, tr.unix(), &got, func(time.Duration) *Charge { return &c })
			if !got.Done {
				if stale++; next.Number == s.Number && !want.Untimely || !reflect.DeepEqual(s.tidy(), before.tidy()) {
					t.Fatalf("seed %d, step %d: %+v does nothing, an Op %+v", seed, step, got, want)
				}
				continue
			}
			if !reflect.DeepEqual(s.tidy(), byOp.tidy()) {
				t.Fatalf("seed %d, step %d: Take leaves\n%+v, an Op\n%+v", seed, step, s.tidy(), byOp.tidy())
			}
			if got.Rem != want.State.Rem || got.Why != want.State.Why || got.Booked == want.Refused {
				t.Fatalf("seed %d, step %d: %+v, an Op %+v", seed, step, got, want)
			}
			if got.Booked {
				booked++
				if c != want.Charges[0] {
					t.Fatalf("seed %d, step %d: %+v, an Op %+v", seed, step, c, want.Charges[0])
				}
			} else if refused++; got.Wait != want.Wait || got.Limit != want.Limit {
				t.Fatalf("seed %d, step %d: %+v, an Op %+v", seed, step, got, want)
			}
		}
	}
	if booked < 1000 || refused < 1000 || stale < 100 {
		t.Errorf("%d booked, %d refused, %d stale", booked, refused, stale)
	}
}

// A call in place allocates nothing. A window allocates its slots as they come, a dozen times.
func TestTake_AllocatesNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates")
	}
	for name, limits := range map[string][]Limit{
		"leaky":  numbered([]Limit{{Capacity: 5, Rate: 10}, {Capacity: 1e9, Rate: 1e8}, {Capacity: 1e9, Rate: 1e7}}),
		"window": {windowOf(5, time.Second)},
		"fixed":  {{Kind: Fixed, Capacity: 5, Rate: 5, Window: time.Second}},
		"hourly": {{Kind: Hourly, Capacity: 1000}},
	} {
		periods := []Period{periodOf(0, 3600), {}, {}}
		var s Stored
		(&Op{Limits: limits, Periods: periods}).ApplyAt(&s, 0, 0)
		var c Charge
		now, n, booked := 10*time.Second, Units{1, 1, 1}, 0
		take := func() {
			now += 50 * time.Millisecond
			var got Taken
			if s.Take(s.Number, &n, periods, 0, now, now, &got, func(time.Duration) *Charge { return &c }); got.Booked {
				booked++
			}
		}
		for range 200 {
			take()
		}
		if got := testing.AllocsPerRun(100, take); got > 0 || booked == 0 {
			t.Errorf("%s: %v allocations, %d booked", name, got, booked)
		}
	}
}

// bytesOf returns the memory of a key in this process and of its limits, in bytes.
func bytesOf(k *kept) int {
	s := &k.Stored
	n := int(unsafe.Sizeof(*k)) + cap(s.Limits)*int(unsafe.Sizeof(Limit{})) + cap(s.State.Parts)*int(unsafe.Sizeof(Part{}))
	for i := range s.State.Parts {
		n += cap(s.State.Parts[i].Slots) * int(unsafe.Sizeof(Slot{}))
	}
	return n
}

// A key of three leaky limits takes at most 940 bytes, and one of a full window at most 2,600.
func TestKey_Bytes(t *testing.T) {
	var three kept
	(&Op{Limits: numbered(make([]Limit, 3))}).Apply(&three.Stored, 0)
	if n := bytesOf(&three); n > 940 {
		t.Errorf("three limits take %d bytes", n)
	}
	for _, every := range []time.Duration{64 * time.Millisecond / 1000, 600 * time.Microsecond} {
		var k kept
		op := Op{Limits: []Limit{windowOf(1000, 64*time.Millisecond)}, Action: Book, Costs: []Units{{1}}}
		for i := range 5000 {
			op.Apply(&k.Stored, time.Duration(i)*every)
		}
		if n := bytesOf(&k); n > 2600 {
			t.Errorf("a call each %v: %d bytes", every, n)
		} else {
			t.Logf("a call each %v: %d bytes, %d slots", every, n, len(k.State.Parts[0].Slots))
		}
	}
}

// fill writes another number into every field of v, and gives each slice two elements.
func fill(t *testing.T, v reflect.Value, next *int64) {
	t.Helper()
	*next++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int32, reflect.Int64:
		v.SetInt(*next)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(uint64(*next % 256))
	case reflect.Float64:
		v.SetFloat(float64(*next) / 2)
	case reflect.String:
		v.SetString(time.Duration(*next).String())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), next)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), next)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), next)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), next)
	default:
		t.Fatalf("no number fits into a %s", v.Type())
	}
}

// change changes in place all to which v leads, but for limits and periods.
func change(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			change(v.Field(i))
		}
	case reflect.Array, reflect.Slice:
		if v.Type() == reflect.TypeFor[[]Limit]() || v.Type() == reflect.TypeFor[[]Period]() {
			return
		}
		for i := range v.Len() {
			change(v.Index(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			change(v.Elem())
		}
	default:
		v.SetZero()
	}
}

func filled(t *testing.T) *Op {
	op, next := new(Op), int64(0)
	fill(t, reflect.ValueOf(op).Elem(), &next)
	return op
}

// A clone shares only what never changes.
func TestClone_SharesNothingThatChanges(t *testing.T) {
	op, want := filled(t), filled(t)
	want.Into = nil
	clone := op.Clone()
	if !reflect.DeepEqual(clone, want) {
		t.Fatalf("the clone is %+v, want %+v", clone, want)
	}
	if &clone.Limits[0] != &op.Limits[0] || &clone.Replacement[0] != &op.Replacement[0] {
		t.Error("the clone does not share the limits")
	}
	change(reflect.ValueOf(op).Elem())
	if !reflect.DeepEqual(clone, want) {
		t.Errorf("after a change of the original the clone is %+v, want %+v", clone, want)
	}
	_ = append(clone.Unused, Charge{})
	if !reflect.DeepEqual(clone, want) {
		t.Errorf("after an append to its Back the clone is %+v, want %+v", clone, want)
	}
}

// What an Op does not have its clone does not have, and a call of no charge stays one.
func TestClone_OfLittleIsLittle(t *testing.T) {
	for _, op := range []*Op{{}, {Limits: []Limit{{}}}, {Reports: []Report{{Kind: Succeeded}}}, {Move: new(Charge)}, {Unused: make([]Charge, 1)}} {
		if clone := op.Clone(); !reflect.DeepEqual(clone, op) {
			t.Errorf("the clone of %+v is %+v", op, clone)
		}
	}
}

// Clone allocates once for each kind of content.
func TestClone_TakesFiveAllocationsAtMost(t *testing.T) {
	var clone *Op
	for _, c := range []struct {
		op   *Op
		most float64
	}{
		{filled(t), 5},
		{&Op{Limits: []Limit{{}}, Action: Book, Costs: []Units{{1}}}, 2},
		{&Op{Limits: []Limit{{}}}, 1},
	} {
		if n := testing.AllocsPerRun(100, func() { clone = c.op.Clone() }); n > c.most && !raced {
			t.Errorf("%v allocations for %+v, want at most %v", n, clone, c.most)
		}
	}
}
