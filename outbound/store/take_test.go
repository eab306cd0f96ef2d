package store

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
	"unsafe"
)

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
			s.Take(next.Number, &next.Costs[0], next.Periods, next.Wait, tr.now, tr.unix(), &got, func() *Charge { return &c })
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
			if s.Take(s.Number, &n, periods, 0, now, now, &got, func() *Charge { return &c }); got.Booked {
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
