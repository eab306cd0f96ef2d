package leak

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// spoils set the numbers of a key to anything.
var spoils = []struct {
	name string
	set  func(s *Stored, x float64)
}{
	{"level", func(s *Stored, x float64) { s.State.Level[0].Level = x }},
	{"ret", func(s *Stored, x float64) { s.State.Level[0].Ret = x }},
	{"top", func(s *Stored, x float64) { s.State.Level[0].Top = x }},
	{"speed", func(s *Stored, x float64) { s.State.Speed = x }},
	{"lead", func(s *Stored, x float64) { s.Lead = x }},
	{"at", func(s *Stored, x float64) { s.State.At = time.Duration(x) }},
	{"born", func(s *Stored, x float64) { s.State.Born = time.Duration(x) }},
	{"skip", func(s *Stored, x float64) { s.State.Skip = time.Duration(x) }},
	{"rem", func(s *Stored, x float64) { s.State.Rem = time.Duration(x) }},
	{"last", func(s *Stored, x float64) { s.State.Last = time.Duration(x) }},
	{"epoch", func(s *Stored, x float64) { s.State.Epoch = int64(x) }},
	{"fails", func(s *Stored, x float64) { s.State.Fails = int(x) }},
	{"version", func(s *Stored, x float64) { s.Version = int64(x) }},
	{"capacity", func(s *Stored, x float64) { s.Limits[0].Capacity = x }},
	{"rate", func(s *Stored, x float64) { s.Limits[0].Rate = x }},
	{"unit", func(s *Stored, x float64) { s.Limits[0].Unit = int32(x) }},
	{"limits", func(s *Stored, x float64) {
		s.Limits = slices.Repeat(s.Limits, int(uint64(int64(x))%20))
	}},
	{"stamp", func(s *Stored, x float64) { s.Stamp = int64(x) }},
	{"another's level", func(s *Stored, x float64) { s.Others[0].Level.Level = x }},
	{"another's ret", func(s *Stored, x float64) { s.Others[0].Level.Ret = x }},
	{"another's rate", func(s *Stored, x float64) { s.Others[0].Limit.Rate = x }},
	{"another's unit", func(s *Stored, x float64) { s.Others[0].Limit.Unit = int32(x) }},
	{"another's dial", func(s *Stored, x float64) { s.Others[0].Dial = time.Duration(x) }},
	{"others", func(s *Stored, x float64) {
		s.Others = slices.Repeat(s.Others, int(uint64(int64(x))%20))
	}},
	{"row's calls", func(s *Stored, x float64) { s.State.Row.Calls = int64(x) }},
	{"row's refusals", func(s *Stored, x float64) { s.State.Row.Refused = int64(x) }},
	{"row's top", func(s *Stored, x float64) { s.State.Row.Top = x }},
	{"row's per", func(s *Stored, x float64) { s.State.Row.Per = x }},
	{"row's fast", func(s *Stored, x float64) { s.State.Row.Fast = x }},
	{"row's trust", func(s *Stored, x float64) { s.State.Row.Trust = int64(x) }},
	{"row's until", func(s *Stored, x float64) { s.State.Row.Until = time.Duration(x) }},
}

var (
	garbageLimit  = Limit{Capacity: 10, Rate: 1}
	garbageOthers = Limit{Capacity: 20, Rate: 2, Unit: 1}
)

const garbageTime = 1_800_000_000 * time.Second

// keyInUse returns a key with 8 units in it, another worker's limit and a refusal in its
// past.
func keyInUse(t testing.TB) Stored {
	var s Stored
	step := func(at time.Duration, limit Limit, op Op) {
		op.Limits = []Limit{limit}
		if r, _ := asWorker(&s, op, at); r.Garbage {
			t.Fatalf("%+v is taken for garbage", s)
		}
	}
	step(garbageTime-time.Minute, garbageOthers, Op{Action: Book, Costs: []Units{{0, 19}}, Claim: 1})
	step(garbageTime-30*time.Second, garbageLimit, Op{Reports: []Report{{Kind: Refused, Epoch: s.State.Epoch, Wait: time.Second}}})
	step(garbageTime, garbageLimit, Op{Action: Book, Costs: []Units{{8}}})
	s.Limits = slices.Clone(s.Limits)
	return s
}

// asWorker does a step for a worker with the limits of op. The costs of op are by unit.
// If the reply is that others are in force, the worker asks again by those.
func asWorker(s *Stored, op Op, at time.Duration) (r Reply, inForce []Limit) {
	own, costs, reports, garbage := op.Limits, slices.Clone(op.Costs), slices.Clone(op.Reports), false
	for range 3 {
		byLimit := func(c Units) (n Units) {
			for i := range op.Limits {
				if u := op.Limits[i].Unit; u >= 0 && u < Max {
					n[i] = min(op.Limits[i].Takes(c[u]), op.Limits[i].Capacity)
				}
			}
			return n
		}
		for i := range costs {
			op.Costs[i] = byLimit(costs[i])
		}
		for i := range reports {
			op.Reports[i].Used = byLimit(reports[i].Used)
		}
		if op.Unset {
			op.Replacement = own
		}
		r = op.Apply(s, at)
		r.Garbage = r.Garbage || garbage
		if !r.Stale {
			break
		}
		garbage = r.Garbage
		if op.Limits, op.Stamp = own, r.Stamp; len(r.Limits) > 0 {
			op.Limits = slices.Clone(r.Limits)
		}
	}
	return r, op.Limits
}

// opened returns how many calls of that cost go at once, and whether a reply told of
// garbage.
func opened(s *Stored, at time.Duration, limit Limit, cost Units) (n int, told bool) {
	for n = range 1000 {
		r, _ := asWorker(s, Op{Action: Book, Limits: []Limit{limit}, Costs: []Units{cost}}, at)
		told = told || r.Garbage
		if len(r.Charges) == 0 {
			return n, told
		}
	}
	return 1000, told
}

func TestGarbageIsFullToTheBrimToldAndNotForEver(t *testing.T) {
	told := 0
	for _, spoil := range spoils {
		for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, 1e25, -1e25, 9e18, -9e18, 1e16, 1e9, 5, 0, -1, 1e-300} {
			name := fmt.Sprintf("%s of %v", spoil.name, x)
			s := keyInUse(t)
			spoil.set(&s, x)
			n, garbage := opened(&s, garbageTime, garbageLimit, Units{1})
			switch {
			case garbage:
				told++
				if n != 0 {
					t.Errorf("%s: %d calls go at once", name, n)
				}
			case n > 10:
				t.Errorf("%s: %d calls go at once, and nobody is told", name, n)
			}
			others := s
			others.Limits = slices.Clone(s.Limits)
			if n, _ := opened(&others, garbageTime, garbageOthers, Units{0, 1}); garbage && n > 20 {
				t.Errorf("%s: %d calls of others go at once", name, n)
			}
			if garbage { // ten seconds later it is empty
				if n, again := opened(&s, garbageTime+10*time.Second, garbageLimit, Units{1}); n != 10 || again {
					t.Errorf("%s: %d calls go after 10s, told again %v", name, n, again)
				}
				continue
			}
			asWorker(&s, Op{Action: Resume, Limits: []Limit{garbageLimit}}, garbageTime)
			if n, _ := opened(&s, garbageTime+24*time.Hour, s.Limits[0], Units{1, 1, 1, 1}); n == 0 {
				t.Errorf("%s: shut after Resume: %+v", name, s)
			}
		}
	}
	if told < len(spoils)*3 {
		t.Errorf("told of %d", told)
	}
}

func TestARowThatCannotBeReadIsGarbageAndAnEmptyOneIsNone(t *testing.T) {
	var s Stored
	if n, told := opened(&s, garbageTime, garbageLimit, Units{1}); n != 10 || told {
		t.Errorf("%d calls of a new key, told %v", n, told)
	}
	s = Stored{}
	s.State.Speed = -1
	if n, told := opened(&s, garbageTime, garbageLimit, Units{1}); n != 0 || !told {
		t.Errorf("%d calls of a row that cannot be read, told %v", n, told)
	}
	s = keyInUse(t)
	s.State.Speed = 0
	if n, told := opened(&s, garbageTime, garbageLimit, Units{1}); n != 0 || !told {
		t.Errorf("%d calls of a row that was partly wiped, told %v", n, told)
	}
	// Limits that were set for all stay so, if they make sense.
	s = keyInUse(t)
	(&Op{Action: Replace, Limits: []Limit{garbageLimit}, Replacement: []Limit{{Capacity: 3, Rate: 1}}}).Apply(&s, garbageTime)
	s.State.Level[0].Level = math.NaN()
	if r, in := asWorker(&s, Op{Limits: []Limit{garbageLimit}}, garbageTime); !r.Garbage || len(in) != 1 || in[0].Capacity != 3 || r.State.Level[0].Level != 3 {
		t.Errorf("limits %v, level %v, told %v", in, r.State.Level[0], r.Garbage)
	}
}

// FuzzApply has Apply work on anything that a store may hand it.
func FuzzApply(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f, 1, 2, 3, 4})
	f.Add([]byte{3, 0, 0, 0, 0, 0, 0, 0, 0, 5, 4, 3, 2, 1, 0, 6})
	f.Add([]byte{8, 0, 0, 0, 0, 0, 0, 0xe0, 0xc3, 9, 0, 0, 0, 0, 0, 0, 0xe0, 0x43, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{16, 0, 0, 0, 0, 0, 0, 0x32, 0x40, 23, 0, 0, 0, 0, 0, 0, 0x32, 0x40, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := keyInUse(t)
		for len(data) >= 9 {
			spoils[int(data[0])%len(spoils)].set(&s, math.Float64frombits(binary.LittleEndian.Uint64(data[1:])))
			if len(s.Limits) == 0 || len(s.Others) == 0 {
				s.Limits, s.Others = []Limit{garbageLimit}, []Other{{Limit: garbageOthers}}
			}
			data = data[9:]
		}
		at := garbageTime
		var charges []Charge
		for i, b := range data {
			op := Op{Limits: []Limit{garbageLimit}, Action: Action(b % 5), Costs: []Units{{1 + float64(b>>5)}}, Wait: time.Duration(b) << 32}
			if i%3 == 2 {
				op.Limits = []Limit{garbageOthers, garbageLimit}
			}
			if op.Unset = b <= 100; op.Action == Replace && !op.Unset {
				op.Replacement = []Limit{{Capacity: float64(b), Rate: 0.5}, garbageOthers}
			}
			switch k := len(charges) - 1; {
			case k < 0:
			case b&64 != 0:
				op.Back = []Charge{charges[k]}
			default:
				op.Reports = []Report{{Kind: ReportKind(b % 5), Charge: &charges[k], Used: Units{3, 3}, Wait: time.Duration(b) << 30}}
			}
			r, in := asWorker(&s, op, at)
			if r.Garbage && i > 0 {
				t.Fatalf("what Apply has left it takes for garbage: %+v", s)
			}
			if r.Wait < 0 || len(r.Charges) > 1 || r.Stale {
				t.Fatalf("%+v", r)
			}
			for j := range in {
				if l := r.State.Level[j].Level; !(l >= 0) || math.IsInf(l, 0) || r.Garbage && len(r.Charges) > 0 && op.Wait == 0 {
					t.Fatalf("garbage %v: %+v", r.Garbage, r)
				}
			}
			charges = append(charges, r.Charges...)
			at += time.Duration(b) << 24
		}
	})
}
