package outbound

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// everyShape calls f with limits of all rates and capacities that a bucket takes.
func everyShape(t *testing.T, random int, f func(l Limit, r *rand.Rand)) {
	t.Helper()
	r := rand.New(rand.NewPCG(3, 3))
	shapes := 0
	try := func(capacity, rate float64) {
		if l := (Limit{Capacity: capacity, LeakRate: rate}); l.check() == "" {
			shapes++
			f(l, r)
		}
	}
	for e := -7; e <= 9; e++ {
		for _, m := range []float64{1, 1.0 / 3, 2.5, 7, 9.99} {
			rate := m * math.Pow(10, float64(e))
			for _, capacity := range []float64{1e-9, 0.3, 0.5, 1, 1.5, 2, 3, 7, 10, 99.9, 1000, 1e6, 1e9, 1e9 + 1, 1e12, rate, rate * 3600, rate * 1e9} {
				try(capacity, rate)
			}
		}
	}
	for range random {
		rate := math.Exp((r.Float64()*16 - 7) * math.Ln10)
		drain := math.Exp((r.Float64()*18.4 - 9) * math.Ln10)
		capacity := drain * rate
		if r.IntN(2) == 0 {
			capacity = math.Ceil(capacity)
		}
		try(capacity, rate)
	}
	if shapes < random/2 {
		t.Fatalf("%d shapes of %d are limits", shapes, random)
	}
}

// aCost returns 1, a part, or all that a limit takes.
func aCost(l *Limit, r *rand.Rand) float64 {
	switch r.IntN(4) {
	case 0:
		return l.Capacity
	case 1:
		return min(1, l.Capacity)
	case 2:
		return l.Capacity * r.Float64()
	default:
		return math.Ceil(l.Capacity * r.Float64())
	}
}

// tooEarly returns a time at which a caller that was told to wait has not waited long
// enough, but for what a float64 does not tell.
func tooEarly(wait time.Duration, l *Limit) time.Duration {
	return wait - 3 - time.Duration(4e-15*l.Capacity/l.LeakRate*1e9)
}

func TestCell_RetryAfterIsEnough(t *testing.T) {
	fast := 0
	everyShape(t, 2000, func(l Limit, r *rand.Rand) {
		b := Must(NewBucket("k", l))
		if b.word.Load() == busy {
			return
		}
		fast++
		now := int64(b.born)
		for range 12 {
			var p Permit
			n := aCost(&l, r)
			c := Cost{min(n, l.Capacity)}
			wait, ok, _ := b.take(&c, now, &p.fill)
			if ok {
				continue
			}
			if wait <= 0 {
				t.Fatalf("%v: a cost of %v leaves the cell", l, n)
			}
			if early := tooEarly(wait, &l); early > 0 {
				if _, ok, _ := b.take(&c, now+int64(early), &p.fill); ok {
					t.Fatalf("%v: a cost of %v, told to wait %v, is admitted %v earlier", l, n, wait, wait-early)
				}
			}
			if now > 4e18 { // far from where an int64 ends
				return
			}
			now += int64(wait)
			if again, ok, _ := b.take(&c, now, &p.fill); !ok {
				t.Fatalf("%v: a cost of %v, back after %v, is told to wait %v", l, n, wait, again)
			}
		}
	})
	t.Log(fast, "limits")
}

func TestLocalState_RetryAfterIsEnough(t *testing.T) {
	everyShape(t, 2000, func(l Limit, r *rand.Rand) {
		limits := []Limit{l}
		for range r.IntN(3) { // of the same order, or no cost would fit all
			m := l.Of(0, string(rune('a'+len(limits))))
			m.Capacity *= 1 + r.Float64()
			m.LeakRate *= 0.5 + r.Float64()
			if m.check() == "" {
				limits = append(limits, m)
			}
		}
		var s store.Stored
		set := newLimitSet(limits)
		now := time.Duration(0)
		var slowest *Limit
		for i := range limits {
			if slowest == nil || limits[i].Capacity/limits[i].LeakRate > slowest.Capacity/slowest.LeakRate {
				slowest = &limits[i]
			}
		}
		book := func(n float64, now time.Duration) (store.Reply, bool) {
			op := store.Op{Limits: set.law, Action: store.Book, Costs: []store.Units{set.units(&Cost{n})}}
			result := op.Apply(&s, now)
			return result, !result.Refused
		}
		for range 12 {
			n := min(aCost(&l, r), l.Capacity)
			if r.IntN(8) == 0 {
				d := time.Duration(r.ExpFloat64() * float64(time.Minute))
				op := store.Op{Limits: set.law, Reports: []store.Report{{Kind: store.Held, Wait: d}}}
				if r.IntN(2) == 0 { // which slows the clock, too
					epoch := s.State.Epoch
					op.Reports = []store.Report{{Kind: store.Succeeded, Epoch: epoch}, {Kind: store.Refused, Wait: d, Epoch: epoch}}
				}
				op.Apply(&s, now)
			}
			result, ok := book(n, now)
			if ok {
				continue
			}
			if result.Wait <= 0 {
				t.Fatalf("%v: a cost of %v: %+v", limits, n, result)
			}
			if early := tooEarly(result.Wait, slowest); early > 0 && s.State.Speed == 1 {
				was := s
				if _, ok := book(n, now+early); ok {
					t.Fatalf("%v: a cost of %v, told to wait %v, is admitted %v earlier", limits, n, result.Wait, result.Wait-early)
				}
				s = was
			}
			now += result.Wait
			if again, ok := book(n, now); !ok {
				t.Fatalf("%v: a cost of %v, back after %v, is told to wait %v", limits, n, result.Wait, again.Wait)
			}
			if now > math.MaxInt64/4 {
				return
			}
		}
	})
}

// Any number of whole costs that add up to the capacity fits, whatever the units
// are worth in time.
func TestCell_WholeCostsFillTheCapacity(t *testing.T) {
	everyShape(t, 500, func(l Limit, r *rand.Rand) {
		l.Capacity = math.Ceil(l.Capacity)
		if l.Capacity > 1000 || l.check() != "" {
			return
		}
		b := Must(NewBucket("k", l))
		if b.word.Load() == busy {
			return
		}
		now := int64(b.born)
		for left := l.Capacity; left > 0; {
			n := math.Ceil(r.Float64() * left)
			var p Permit
			if wait, ok, _ := b.take(&Cost{n}, now, &p.fill); !ok {
				t.Fatalf("%v: %v of the %v that are left have to wait %v", l, n, left, wait)
			}
			left -= n
		}
	})
}
