package store

import (
	"math"
	"testing"
	"time"
)

func (f *fleet) check(t *testing.T) {
	t.Helper()
	if f.oops != nil {
		t.Error(f.oops)
	}
}

// Refusals at random come at any speed, so slowing down gains nothing.
func TestSteer_RandomRefusalsDoNotCollapseTheSpeed(t *testing.T) {
	for _, c := range []struct {
		rate, noise float64
		hint        bool
		seeds       uint64
		want        float64 // the average share of the limit in the second hour; each hint holds all calls for a second
	}{
		{10, 0.01, true, 4, 0.8},
		{10, 0.01, false, 4, 0.9},
		{100, 0.01, true, 1, 0.45},
		{100, 0.01, false, 1, 0.9},
	} {
		if raced || testing.Short() {
			if c.seeds = 1; c.rate > 10 {
				continue
			}
		}
		sum := 0.0
		for seed := range c.seeds {
			a := &api{noise: c.noise, hint: c.hint, r: seeded(seed)}
			f := newFleet(20, Limit{Capacity: 1, Rate: c.rate}, a.answer)
			f.run(time.Hour)
			share := f.share(2*time.Hour, c.rate)
			t.Logf("%v/s, hint %v, seed %d: %.3f", c.rate, c.hint, seed, share)
			sum += share
			f.check(t)
		}
		if sum /= float64(c.seeds); sum < c.want {
			t.Errorf("%v/s, hint %v: %.3f of the limit is used, want %v", c.rate, c.hint, sum, c.want)
		}
	}
}

// Refusals that come because the pace is too fast end when it is slow enough.
func TestSteer_FindsALimitThatIsTooHigh(t *testing.T) {
	for _, c := range []struct{ times, want float64 }{{2, 0.94}, {10, 0.93}} {
		for _, hint := range []bool{true, false} {
			a := &api{capacity: 10, rate: 25, hint: hint}
			f := newFleet(20, Limit{Capacity: 1, Rate: 25 * c.times}, a.answer)
			f.run(time.Minute)
			a.sent, a.refused = 0, 0
			share, refused := f.share(31*time.Minute, 25), float64(a.refused)/float64(a.sent)
			t.Logf("%v times, hint %v: %.3f used, %.4f refused", c.times, hint, share, refused)
			if share < c.want || refused > 0.005 {
				t.Errorf("%v times the limit, hint %v: %.3f used and %.4f refused, want %v and 0.005", c.times, hint, share, refused, c.want)
			}
			f.check(t)
		}
	}
}

// When an API stops shedding calls, the whole rate returns.
func TestSteer_RateReturnsWhenSheddingEnds(t *testing.T) {
	seeds := 20
	if raced || testing.Short() {
		seeds = 4
	}
	for _, hint := range []bool{true, false} {
		back := 0
		for seed := range uint64(seeds) {
			a := &api{capacity: 10, rate: 25, hint: hint, r: seeded(seed)}
			f := newFleet(20, Limit{Capacity: 1, Rate: 25}, a.answer)
			f.run(10 * time.Minute)
			a.noise = 0.3
			f.run(20 * time.Minute)
			a.noise = 0
			f.run(20*time.Minute + 30*time.Second)
			if share := f.share(22*time.Minute, 25); share >= 0.9 {
				back++
			}
			f.check(t)
		}
		// In one row of 40 chance looks like success, and ten minutes have several rows.
		if t.Logf("hint %v: %d of %d", hint, back, seeds); back < seeds*3/4 {
			t.Errorf("hint %v: in %d of %d cases nine tenths of the rate are back 30s after it has ended", hint, back, seeds)
		}
	}
}

// An API that refuses every call gets fewer than one call a minute.
func TestSteer_RefusingAPIIsHardlyCalled(t *testing.T) {
	a := &api{noise: 1, r: seeded(1)}
	f := newFleet(20, Limit{Capacity: 1, Rate: 25}, a.answer)
	if _, sent := f.run(time.Hour); sent > 45 {
		t.Errorf("%d calls in an hour, want at most 45", sent)
	}
	f.check(t)
	// The same holds after the verdict that slowing down does not help.
	a.noise = 0.01
	for seed := time.Duration(2); f.Row.Trust <= 0; seed++ {
		f.run(seed * time.Hour)
	}
	begin := f.At
	a.noise = 1
	if _, sent := f.run(begin + time.Hour); sent > 60 {
		t.Errorf("%d calls in an hour, want at most 60", sent)
	}
}

// The calls keep the limit, and the speed its rules, under any answers of an API.
func TestSteer_NoHistoryBreaksTheLimit(t *testing.T) {
	rounds := uint64(60)
	if testing.Short() || raced {
		rounds = 6
	}
	rows, trusted, sent := 0, 0, 0
	for seed := range rounds {
		r := seeded(seed)
		a := &api{r: r}
		rate := []float64{1, 10, 100}[r.IntN(3)]
		f := newFleet(1+r.IntN(30), Limit{Capacity: 1 + float64(r.IntN(2)*r.IntN(20)), Rate: rate}, a.answer)
		f.latency = []time.Duration{time.Millisecond, 30 * time.Millisecond, time.Second}[r.IntN(3)]
		for range 40 {
			a.noise = []float64{0, 0.001, 0.01, 0.05, 0.3, 1}[r.IntN(6)]
			a.hint = r.IntN(2) == 0
			a.capacity, a.rate = float64(1+r.IntN(50)), rate*[]float64{0, 0.05, 0.5, 2}[r.IntN(4)]
			f.run(f.At + time.Duration(r.Float64()*float64(10*time.Minute)))
			if r.IntN(20) == 0 {
				f.Hold(f.limits, time.Minute, nil, true)
			}
		}
		if f.check(t); f.oops != nil {
			t.Fatalf("seed %d", seed)
		}
		rows, trusted, sent = rows+f.rows, trusted+f.trusted, sent+f.sent
	}
	t.Logf("%d calls, %d rows of refusals, trusted %d times", sent, rows, trusted)
	if rows < 10*int(rounds) || trusted < 10*int(rounds) {
		t.Errorf("%d rows, %d refusals that only held: too few to tell", rows, trusted)
	}
}

// The refusals of a series count for an hour.
func TestSteer_RowIsForgottenAfterAnHour(t *testing.T) {
	limits := one(10, 10)
	s := New(0, 1)
	if s.Refused(limits, s.Epoch, 0, 0, nil); s.Row.Refused != 1 {
		t.Fatalf("%+v", s.Row)
	}
	s.Advance(limits, 30*time.Minute)
	s.Refused(limits, s.Epoch-1, 0, 0, nil) // a refusal of an older epoch counts as well
	if in := s.Expire(limits); in != time.Hour || s.Idle(limits) {
		t.Errorf("forgotten after %v, want an hour", in)
	}
	var c Charge
	if _, _, ok := s.Fill(limits, &Units{5}, &Units{5}, 0, &c); !ok || s.Row.Calls != 1 {
		t.Errorf("a call of five units: %+v", s.Row)
	}
	later := s
	if later.Advance(limits, 90*time.Minute-1); later.Row != s.Row || later.Idle(limits) {
		t.Errorf("before: %+v", later.Row)
	}
	if later.Advance(limits, 90*time.Minute); later.Row != (Row{}) || !later.Idle(limits) {
		t.Errorf("after an hour: %+v", later.Row)
	}
	back := s
	back.Advance(limits, 10*time.Minute) // the clock has stepped back
	if in := back.Expire(limits); in != time.Hour {
		t.Errorf("forgotten after %v, want an hour", in)
	}
	resumed := s
	if resumed.Resume(limits); resumed.Row != (Row{}) {
		t.Errorf("after a Resume: %+v", resumed.Row)
	}
	if resumed.Refused(limits, s.Epoch, 0, 0, nil); resumed.Row != (Row{}) {
		t.Errorf("after a refusal from before a Resume: %+v", resumed.Row)
	}
}

// Until a row is full the law has nothing to compare with: each refusal slows the clock
// down, to half the speed at most.
func TestSteer_RowSlowsToHalfAtMost(t *testing.T) {
	limits := one(10, 10)
	s := New(0, 1)
	want := 1.0
	for i := range 16 {
		s.Succeeded(s.Epoch)
		if i > 0 {
			want = max(0.5, 0.7*want)
		} else {
			want = 0.9
		}
		s.Refused(limits, s.Epoch, time.Nanosecond, 0, nil)
		if i == 15 {
			want = 0.5 * 0.7 // the next row
		}
		if s.Speed != want {
			t.Errorf("refusal %d: speed %v, want %v", i, s.Speed, want)
		}
	}
}

// If refusals do not become fewer at a lower speed, the clock stops slowing down.
func TestSteer_UselessSlowDownEnds(t *testing.T) {
	limits := one(10, 10)
	s := New(0, 1)
	refuse := func(d time.Duration) {
		for range 100 {
			s.Advance(limits, s.At+200*time.Millisecond)
			s.Row.call()
			s.Succeeded(s.Epoch)
		}
		s.Refused(limits, s.Epoch, d, 0, nil)
	}
	n := 0
	for ; s.Row.Trust <= 0 && n < 200; n++ {
		refuse(0)
	}
	if n != 32 || s.Speed != 1 { // a row to compare with, and one in which the speed falls
		t.Errorf("found after %d refusals, speed %v", n, s.Speed)
	}
	epoch := s.Epoch
	if refuse(0); s.Rem > 0 || s.Speed != 1 || s.Epoch == epoch {
		t.Errorf("held for %v at speed %v", s.Rem, s.Speed)
	}
	if s.Refused(limits, s.Epoch, 0, 0, nil); s.Rem != 2*time.Second || s.Speed != 1 {
		t.Errorf("a second with no success between: held for %v at speed %v", s.Rem, s.Speed)
	}
	if refuse(3 * time.Second); s.Rem != 3*time.Second || s.Speed != 1 {
		t.Errorf("as the API has asked: held for %v at speed %v", s.Rem, s.Speed)
	}
	for range 16 { // far more than before: some come because the pace is too fast
		s.Succeeded(s.Epoch)
		s.Refused(limits, s.Epoch, 0, 0, nil)
	}
	if s.Speed >= 1 || s.Row.Trust <= 0 {
		t.Errorf("clearly more: speed %v, %+v", s.Speed, s.Row)
	}
}

// Once slowing down has cost four tenths of the speed, three full rows in which it has not
// helped are enough for the verdict.
func TestSteer_GivesUpAtFourTenths(t *testing.T) {
	for _, c := range []struct {
		trust   int64
		v, next float64
		found   bool
	}{
		{-3, 0.61, 0.549, false}, {-3, 0.6, 1, true}, {-3, 0.55, 1, true}, {-3, 0.5, 1, true},
		{-2, 0.6, 0.54, false}, {-2, 0.5, 0.45, false},
	} {
		r := Row{Calls: 160, Refused: full, Top: c.v, Per: 10, Fast: 1, Trust: c.trust}
		next := r.steer(c.v, false)
		if math.Abs(next-c.next) > 1e-12 || (r.Trust > 0) != c.found {
			t.Errorf("from %v after %d rows: speed %v, want %v, %+v", c.v, -c.trust, next, c.next, r)
		}
	}
}
