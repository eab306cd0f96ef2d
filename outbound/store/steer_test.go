package store

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
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

// fleet is workers that call an API through one bucket as fast as the bucket allows, each
// one call after the other. Its time is simulated: nothing in it sleeps.
type fleet struct {
	State
	limits  []Limit
	latency time.Duration
	// api answers a call that arrives at a time: whether it is refused, and how long
	// the API asks to wait.
	api func(at time.Duration) (refused bool, hint time.Duration)

	booked  []Charge  // in the order of their places
	answers []arrival // in the order of their times
	idle    wakeups   // the workers that neither wait for a place nor for an answer
	sent    int
	taken   int // not refused
	trusted int // refusals that have not slowed the clock down
	rows    int // rows that have ended
	level   float64
	left    time.Duration
	oops    error
}

// arrival is an answer under way.
type arrival struct {
	at      time.Duration
	call    Charge
	epoch   int64
	refused bool
	hint    time.Duration
}

type wakeups []time.Duration

func (w wakeups) Len() int           { return len(w) }
func (w wakeups) Less(i, j int) bool { return w[i] < w[j] }
func (w wakeups) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }
func (w *wakeups) Push(x any)        { *w = append(*w, x.(time.Duration)) }
func (w *wakeups) Pop() any {
	old := *w
	x := old[len(old)-1]
	*w = old[:len(old)-1]
	return x
}

func newFleet(workers int, ours Limit, api func(time.Duration) (bool, time.Duration)) *fleet {
	f := &fleet{State: New(0, 1), limits: []Limit{ours}, latency: 30 * time.Millisecond, api: api}
	for range workers {
		heap.Push(&f.idle, time.Duration(0))
	}
	return f
}

// run goes on until a time. It returns how many calls the API has admitted meanwhile, and
// how many were sent.
func (f *fleet) run(until time.Duration) (taken, sent int) {
	taken, sent = f.taken, f.sent
	for {
		next, what := until, 0
		if len(f.idle) > 0 && f.idle[0] < next {
			next, what = f.idle[0], 1
		}
		if len(f.answers) > 0 && f.answers[0].at < next {
			next, what = f.answers[0].at, 2
		}
		if len(f.booked) > 0 {
			if in, _ := f.Due(f.booked[0].Place); f.At+in < next {
				next, what = f.At+in, 3
			}
		}
		f.Advance(f.limits, max(f.At, next))
		switch what {
		case 0:
			return f.taken - taken, f.sent - sent
		case 1:
			heap.Pop(&f.idle)
			var c Charge
			f.Fill(f.limits, &Units{1}, &Units{1}, farthest, &c)
			f.booked = append(f.booked, c)
		case 2:
			f.hear(f.answers[0])
			f.answers = f.answers[1:]
		case 3:
			f.leave(f.booked[0])
			f.booked = f.booked[1:]
		}
	}
}

func (f *fleet) leave(c Charge) {
	f.sent++
	f.level = max(0, f.level-f.limits[0].Rate*(f.At-f.left).Seconds()) + 1
	if f.left = f.At; f.level > f.limits[0].Capacity+1e-6 {
		f.oops = fmt.Errorf("%v units are in it at %v", f.level, f.At)
	}
	refused, hint := f.api(f.At + f.latency/2)
	if !refused {
		f.taken++
	}
	f.answers = append(f.answers, arrival{f.At + f.latency, c, f.Epoch, refused, hint})
}

func (f *fleet) hear(a arrival) {
	pause := time.Duration(0)
	if a.refused {
		was, v := f.Row, f.Speed
		f.Refused(f.limits, a.epoch, a.hint, 0, &a.call)
		f.judge(was, v)
		pause = max(a.hint, time.Second)
	} else {
		f.Succeeded(a.epoch)
	}
	heap.Push(&f.idle, f.At+pause)
}

// judge checks the row and the speed after a refusal.
func (f *fleet) judge(was Row, v float64) {
	row, began := &f.Row, was.Top
	m := float64(was.Calls) / float64(was.Refused+1)
	if row.Refused == 0 {
		f.rows++
		began = v
	} else if was.Per > 0 {
		m = was.Per
	}
	if row.Trust > 0 {
		f.trusted++
	}
	switch lowest := 0.5 * began; {
	case !(f.Speed >= MinSpeed && f.Speed <= 1):
		f.oops = fmt.Errorf("speed %v", f.Speed)
	case f.Speed < min(v, max(MinSpeed, lowest))-1e-12:
		f.oops = fmt.Errorf("speed %v in a row that began at %v, before %v", f.Speed, began, v)
	case was.Trust <= 0 && m >= 60 && f.Speed < min(v, 0.4*row.Fast)-1e-12:
		f.oops = fmt.Errorf("speed %v, before %v: %+v", f.Speed, v, row)
	}
}

// share goes on until a time, and returns the share of a rate that the API has admitted.
func (f *fleet) share(until time.Duration, rate float64) float64 {
	begin := f.At
	taken, _ := f.run(until)
	return float64(taken) / (rate * (until - begin).Seconds())
}

// api is an API with a leaky bucket, which also refuses some calls at random.
type api struct {
	capacity, rate float64 // 0: no limit
	noise          float64
	hint           bool // it says how long to wait, in whole seconds
	r              *rand.Rand
	level          float64
	at             time.Duration
	sent, refused  int
}

func (a *api) answer(at time.Duration) (bool, time.Duration) {
	hint := time.Duration(0)
	if a.hint {
		hint = time.Second
	}
	a.sent++
	a.level = max(0, a.level-a.rate*(at-a.at).Seconds())
	a.at = at
	if a.noise > 0 && a.r.Float64() < a.noise || a.rate > 0 && a.level+1 > a.capacity {
		a.refused++
		return true, hint
	}
	a.level++
	return false, 0
}

func seeded(n uint64) *rand.Rand { return rand.New(rand.NewPCG(n, 12)) }
