package store

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A store whose stamps waver admits what the limit allows, and loses nothing by it.
func TestStampsThatWaverAdmitNoMoreThanTheLimit(t *testing.T) {
	limit := []Limit{{Capacity: 10, Rate: 500}}
	for name, stamp := range map[string]func(r *rand.Rand, at time.Duration) time.Duration{
		"jitter of 5 ms":    func(r *rand.Rand, at time.Duration) time.Duration { return at + time.Duration(r.Int64N(5e6)) },
		"clocks 1 ms apart": func(r *rand.Rand, at time.Duration) time.Duration { return at + time.Duration(r.Int64N(2)*1e6) },
		"clocks 1 s apart":  func(r *rand.Rand, at time.Duration) time.Duration { return at + time.Duration(r.Int64N(2)*1e9) },
	} {
		r := rand.New(rand.NewPCG(1, 2))
		var s Stored
		admitted := 0
		const all = 3 * time.Second
		for at := time.Duration(0); at < all; at += 100 * time.Microsecond {
			op := Op{Limits: limit, Action: Book, Costs: []Units{{1}}}
			admitted += len(op.Apply(&s, 1000*time.Second+stamp(r, at)).Charges)
		}
		// A clock that is a second ahead adds what leaks in a second, once.
		if most := 10 + 500*(all+time.Second).Seconds(); float64(admitted) > most || admitted < 500*int(all/time.Second) {
			t.Errorf("%s: %d went in %v", name, admitted, all)
		}
	}
}

func TestClock_SmallStepBackIsTheLatestStamp(t *testing.T) {
	limit := Limit{Capacity: 10, Rate: 1}
	for _, c := range []struct {
		back time.Duration
		// how long a call of 10 waits after one of 10 and the step, and the level 5 s after the
		// step
		wait, level float64
	}{
		{0, 10, 5},
		{time.Millisecond, 10.001, 5.001},
		{time.Second, 11, 6},
		{time.Second + 1, 10, 5},
		{time.Hour, 10, 5},
	} {
		k := &storedKey{T: t}
		at := 10_000.
		k.book(at, 0, Units{10}, limit)
		r := k.do(at-c.back.Seconds(), Op{Action: Book, Costs: []Units{{10}}}, limit)
		if r.Wait != time.Duration(c.wait*1e9) {
			t.Errorf("%v back: told to wait %v, want %vs", c.back, r.Wait, c.wait)
		}
		stepped := k.now
		if r := k.do((stepped + 5*time.Second).Seconds(), Op{}, limit); r.State.Level[0] < c.level-1e-6 || r.State.Level[0] > c.level+1e-6 {
			t.Errorf("%v back: level %v after 5s, want %v", c.back, r.State.Level[0], c.level)
		}
		if r := k.do((stepped + r.Wait).Seconds(), Op{Action: Book, Costs: []Units{{10}}}, limit); len(r.Charges) != 1 {
			t.Errorf("%v back: not admitted after the %v that it was told, but after %v more", c.back, time.Duration(c.wait*1e9), r.Wait)
		}
	}
}

func TestAStepBackOfTheClockIsLostAlsoForWhoIsOnlyRefused(t *testing.T) {
	l := []Limit{{Capacity: 1, Rate: 1}}
	var s Stored
	book := func(now time.Duration) Reply {
		op := Op{Limits: l, Action: Book, Costs: []Units{{1}}}
		return op.Apply(&s, now)
	}
	if r := book(time.Hour); len(r.Charges) != 1 {
		t.Fatal("the first was refused")
	}
	if r := book(0); !r.Refused || r.Wait != time.Second {
		t.Errorf("just after the step: %+v", r)
	}
	if r := book(time.Second); r.Refused {
		t.Errorf("a second after the step: wait %v", r.Wait)
	}
}

// Apply changes nothing of the step, so it can run again on another state.
func TestApplyCanBeCalledAgainByAStoreThatLostARace(t *testing.T) {
	l := []Limit{{Capacity: 10, Rate: 1}}
	var s Stored
	op := Op{Limits: l, Action: Book, Costs: []Units{{5}}}
	charge := op.Apply(&s, 0).Charges[0]
	for name, op := range map[string]*Op{
		"settle": {Limits: l, Reports: []Report{{Kind: Settled, Charge: &charge, Used: Units{1}}}},
		"unbook": {Limits: l, Action: Book, Back: []Charge{charge}},
	} {
		first, again := s.Clone(), s.Clone()
		op.Apply(&first, 0)
		op.Apply(&again, 0)
		if !sameStates(first.State, again.State) || sameStates(first.State, s.State) {
			t.Errorf("%s: level %v, then %v", name, first.State.Level[0], again.State.Level[0])
		}
	}
}
