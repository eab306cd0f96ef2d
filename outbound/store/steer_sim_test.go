package store

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"
)

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
