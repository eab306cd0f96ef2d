package leak

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// storedKey is one key of a store, in simulated time.
type storedKey struct {
	*testing.T
	Stored
	now time.Duration
}

// do has a worker with these limits do something at a time in seconds. The costs of op are
// by unit.
func (k *storedKey) do(at float64, op Op, limits ...Limit) Reply {
	k.Helper()
	k.now = time.Duration(at * 1e9)
	if op.Unset = op.Action == Replace && op.Replacement == nil; op.Unset {
		op.Replacement = limits
	}
	if op.Limits, op.Stamp = limits, k.Stamp; k.Stamp != 0 {
		op.Limits = k.Limits
	}
	byLimit := func(c Units) (n Units) {
		for i := range op.Limits {
			n[i] = op.Limits[i].Takes(c[op.Limits[i].Unit])
		}
		return n
	}
	for i := range op.Costs {
		op.Costs[i] = byLimit(op.Costs[i])
	}
	for i := range op.Reports {
		op.Reports[i].Used = byLimit(op.Reports[i].Used)
	}
	r := op.Apply(&k.Stored, k.now)
	if r.Stale {
		k.Fatal("stale, with the limits in force")
	}
	return r
}

// book books one call, and checks that it goes in wait seconds.
func (k *storedKey) book(at, wait float64, c Units, limits ...Limit) Charge {
	k.Helper()
	r := k.do(at, Op{Action: Book, Costs: []Units{c}, Wait: time.Hour}, limits...)
	if len(r.Charges) == 0 {
		k.Fatalf("%v of %v at %v: refused for %v", c, limits, at, r.Wait)
	}
	if in, _ := r.State.Due(r.Charges[0].Place); math.Abs(in.Seconds()-wait) > 1e-6 {
		k.Errorf("%v of %v at %v goes after %v, want %v", c, limits, at, in.Seconds(), wait)
	}
	return r.Charges[0]
}

// levels checks the levels that a bucket with these limits sees, and that its look changes
// nothing.
func (k *storedKey) levels(at float64, limits []Limit, want ...float64) Reply {
	k.Helper()
	before := fmt.Sprintf("%+v", k.Stored)
	r := k.do(at, Op{}, limits...)
	for i, want := range want {
		if got := r.State.Level[i].Level; math.Abs(got-want) > 1e-6 {
			k.Errorf("limit %d of %v at %v: level %v, want %v", i, limits, at, got, want)
		}
	}
	if after := fmt.Sprintf("%+v", k.Stored); before != after {
		k.Errorf("a look has changed\n%s to\n%s", before, after)
	}
	return r
}

func TestALimitThatOthersDoNotHaveLeaksWhileTheyCome(t *testing.T) {
	k := &storedKey{T: t}
	common := Limit{Capacity: 100, Rate: 1, Name: "common"}
	old := []Limit{{Capacity: 10, Rate: 1, Name: "old"}, common}
	young := []Limit{common, {Capacity: 50, Rate: 5, Name: "new"}}
	k.book(0, 0, Units{10}, old...)
	k.book(1, 0, Units{20}, young...)
	k.book(2, 0, Units{20}, young...)
	k.levels(4, old, 6, 46)
	k.levels(4, young, 46, 25)
	k.book(4, 5, Units{9}, old...)
	k.levels(4, young, 55, 25)
	k.levels(4, old, 15, 55)
	k.levels(9, old, 10, 50)
	k.levels(200, old, 0, 0)
	k.levels(200, young, 0, 0)
}

func TestBucketsWithDifferentRatesOfOneLimitLeakByTheirOwn(t *testing.T) {
	k := &storedKey{T: t}
	slow, fast := Limit{Capacity: 10, Rate: 1}, Limit{Capacity: 10, Rate: 4}
	k.book(0, 0, Units{10}, slow)
	k.levels(1, []Limit{slow}, 9)
	k.levels(1, []Limit{fast}, 6)
	// Up to the last booking it leaks as it was booked, and then by the rate of the worker
	// that asks.
	k.book(0, 2, Units{2}, slow)    // 12 in it now, 10 in 2 s
	k.book(0, 2.5, Units{2}, fast)  // 10 in 2.5 s
	k.book(0, 4.5, Units{2}, slow)  // 10 in 4.5 s
	k.book(0, 5, Units{2}, fast)    // 10 in 5 s
	k.levels(5, []Limit{slow}, 10)  // both see the same
	k.levels(5, []Limit{fast}, 10)  //
	k.levels(6, []Limit{slow}, 9)   // each by its own rate
	k.levels(6, []Limit{fast}, 6)   //
	k.book(7.5, 0, Units{10}, fast) // empty by its own
	k.levels(7.5, []Limit{slow}, 10)
}

func TestUnitsComeBackThroughOtherLimits(t *testing.T) {
	k := &storedKey{T: t}
	slow, fast := Limit{Capacity: 10, Rate: 1}, Limit{Capacity: 10, Rate: 4}
	c := k.book(0, 0, Units{10}, slow)
	k.book(2, 0, Units{8}, fast) // 2 of the 10 are left, by the rate of this one
	k.do(2, Op{Reports: []Report{{Kind: Settled, Charge: &c}}}, slow)
	k.levels(2, []Limit{slow}, 8)
}

func TestDifferTellsOfOtherLimitsOnly(t *testing.T) {
	k := &storedKey{T: t}
	a, b := Limit{Capacity: 10, Rate: 1}, Limit{Capacity: 20, Rate: 2, Unit: 1}
	tokens := Limit{Capacity: 30, Rate: 2, Unit: 1}
	for i, step := range []struct {
		limits []Limit
		differ bool
	}{
		{[]Limit{a, b}, false}, {[]Limit{a, b}, false}, {[]Limit{b, a}, false}, {[]Limit{a, tokens}, true},
		{[]Limit{a, tokens}, false}, {[]Limit{a}, true}, {[]Limit{a, tokens}, true}, {[]Limit{{Capacity: 10, Rate: 1, Name: "name"}, tokens}, true},
	} {
		r := k.do(float64(i), Op{Action: Book, Costs: []Units{{1, 1}}, Wait: time.Hour}, step.limits...)
		if r.Differ != step.differ || len(r.Charges) != 1 {
			t.Errorf("step %d, %v: differ %v, %d charges", i, step.limits, r.Differ, len(r.Charges))
		}
	}
	k.do(10, Op{Action: Replace, Replacement: []Limit{a}}, a)
	if r := k.do(11, Op{}, b); r.Differ {
		t.Error("limits that were set for all differ from a bucket's own")
	}
}

func TestResumeTakesBackWhatAHoldLetLeakAheadOfAllLimits(t *testing.T) {
	mine, others := []Limit{{Capacity: 20, Rate: 1}}, []Limit{{Capacity: 20, Rate: 1, Name: "other"}, {Capacity: 8, Rate: 2, Name: "short"}}
	for _, held := range []bool{true, false} {
		k := &storedKey{T: t}
		k.book(0, 0, Units{8}, others...)
		k.book(0.2, 0, Units{5}, mine...)
		if held {
			k.do(1, Op{Reports: []Report{{Kind: Held, Wait: time.Minute}}}, mine...)
			k.levels(1, others, 0, 0) // they may go when the hold has ended
			k.do(3, Op{Action: Resume}, mine...)
		} else {
			k.do(3, Op{Action: Resume}, mine...)
			k.levels(3, mine, 2.2)
			k.levels(3, others, 5, 2)
			continue
		}
		k.levels(3, mine, 20) // after a hold it drips
		k.levels(3, others, 5, 2)
		k.book(3, 0, Units{1}, others...)
		k.levels(4, others, 5, 1)
		k.do(4, Op{Action: Resume}, mine...)
		k.levels(4, others, 5, 1)
	}
	// A level that was parked during the hold counts by the dial of then.
	k := &storedKey{T: t}
	k.book(0, 0, Units{20}, mine...)
	k.do(1, Op{Reports: []Report{{Kind: Held, Wait: 10 * time.Second}}}, mine...)
	k.do(1, Op{Action: Meter, Costs: []Units{{3}}}, others...)
	k.do(1, Op{Action: Resume}, mine...)
	k.levels(1, others, 13, 8) // what has leaked ahead comes back up to the capacity
}

func TestALimitOfOthersOutlivesThoseInUse(t *testing.T) {
	k := &storedKey{T: t}
	hour, second := Limit{Capacity: 3600, Rate: 1, Name: "hour"}, Limit{Capacity: 1, Rate: 1}
	k.book(0, 0, Units{3600}, hour)
	k.book(0, 0, Units{1}, second)
	if r := k.levels(10, []Limit{second}, 0); r.Expire < 3589*time.Second {
		t.Errorf("forgotten after %v, want 3590s", r.Expire)
	}
	if r := k.levels(3600, []Limit{second}, 0); r.Expire > 0 {
		t.Errorf("kept for %v, with nothing in it", r.Expire)
	}
}

func TestOfTooManyLimitsTheEmptyAreForgottenAndGiveNothingBack(t *testing.T) {
	k := &storedKey{T: t}
	limit := func(i int) Limit { return Limit{Capacity: 100, Rate: 1, Name: fmt.Sprint(i)} }
	var first Charge
	for i := range 10 {
		c := k.book(0, 0, Units{float64(1 + i)}, limit(i))
		if i == 0 {
			first = c
		}
	}
	if len(k.Others) != 9 || k.Version != 0 {
		t.Fatalf("%d others, version %d", len(k.Others), k.Version)
	}
	k.book(1.5, 0, Units{50}, limit(10))
	k.book(1.5, 0, Units{50}, limit(11)) // the time of the step before counts
	if len(k.Others) != 10 || k.Version != 2 {
		t.Fatalf("%d others, version %d", len(k.Others), k.Version)
	}
	for i := 1; i < 10; i++ {
		k.levels(1.5, []Limit{limit(i)}, float64(i)-0.5)
	}
	k.book(1.5, 0, Units{50}, limit(0))
	k.do(1.5, Op{Action: Book, Back: []Charge{first}}, limit(0))
	k.levels(1.5, []Limit{limit(0)}, 50)
}

func TestLimitsThatAreReplacedComeBackWithTheirLevels(t *testing.T) {
	k := &storedKey{T: t}
	a, b := Limit{Capacity: 10, Rate: 1, Name: "a"}, Limit{Capacity: 10, Rate: 1, Name: "b"}
	k.book(0, 0, Units{8}, a)
	k.book(0, 0, Units{6}, b)
	// So long after the bookings that no call is still leaving.
	set := Limit{Capacity: 5, Rate: 2, Name: "a"}
	k.do(1, Op{Action: Replace, Replacement: []Limit{set}}, b)
	k.levels(1, []Limit{a}, 7)
	k.levels(2, []Limit{b}, 5)
	k.do(2, Op{Action: Replace}, b)
	k.levels(2, []Limit{b}, 4)
	k.levels(2, []Limit{a}, 5) // it leaked at the rate that was set, twice as fast
	if k.Version != 2 || k.Stamp != 0 {
		t.Errorf("version %d, stamp %v", k.Version, k.Stamp)
	}
}
