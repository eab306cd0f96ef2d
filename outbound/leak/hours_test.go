package leak

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// hours is a key with a moving window, a leaky limit and a calendar, which all keep their
// promise at once, through hours of everything that can happen to a key.
type hours struct {
	*rand.Rand
	Stored
	limits []Limit
	real   time.Duration // what no clock bends
	off    time.Duration // of the store's clock
	booked []Charge
	recent []*departure
	gone   []*departure
	epoch  int64
	moved  int // places that a hold has moved to another period
}

// departure is a call that has gone, and what it has really cost, as far as it had acquired it.
type departure struct {
	Charge
	at   time.Duration
	used Units
}

const (
	hoursApart = 10 * time.Millisecond // what the law adds to the API's window
	hoursDay   = 600                   // seconds of a period
)

func (w *hours) ask(op Op) Reply {
	op.Limits, op.Stamp = w.limits, w.Stamp
	now := w.real + w.off
	op.Periods = make([]Period, len(w.limits))
	op.Periods[2] = periodOf(now, hoursDay)
	r := op.Apply(&w.Stored, now)
	if r.Untimely { // the clock was set back by a moment
		op.Periods[2] = periodOf(r.Unix, hoursDay)
		r = op.Apply(&w.Stored, now)
	}
	w.epoch = r.State.Epoch
	return r
}

// pass lets real time pass, and the booked calls go when they are due, up to 5 ms late.
func (w *hours) pass(d time.Duration) {
	for end := w.real + d; ; {
		r := w.ask(Op{})
		next, who := end-w.real, -1
		for i := range w.booked {
			if in, _ := r.State.Due(w.booked[i].Place); w.booked[i].Born != r.State.Born || in < next {
				next, who = max(0, in), i
				if w.booked[i].Born != r.State.Born {
					next = 0
					break
				}
			}
		}
		if w.real += next; who < 0 {
			return
		}
		c := w.booked[who]
		w.booked = slices.Delete(w.booked, who, who+1)
		switch r := w.ask(Op{}); {
		case c.Born != r.State.Born:
		case r.State.Dial() < c.Place || r.State.Rem > 0: // the clock wavers
			w.real += time.Microsecond
			w.booked = slices.Insert(w.booked, who, c)
		case Moved(c.Up[2], r.Unix):
			w.moved++
			w.ask(Op{Action: Book, Back: []Charge{c}})
		default:
			late := time.Duration(w.Int64N(int64(hoursApart / 2)))
			d := &departure{c, w.real + late, c.N}
			w.gone = append(w.gone, d)
			w.recent = append(w.recent[max(0, len(w.recent)-9):], d)
		}
	}
}

func (w *hours) step() {
	switch k := w.IntN(40); {
	case k < 18:
		op := Op{Action: Book, Wait: time.Duration(w.ExpFloat64() * float64(5*time.Second)), Horizon: time.Second}
		for range 1 + w.IntN(3) {
			n := float64(1 + w.IntN(2))
			op.Costs = append(op.Costs, Units{n, 1, n})
		}
		w.booked = append(w.booked, w.ask(op).Charges...)
		w.pass(0)
	case k < 22 && len(w.recent) > 0:
		i := w.IntN(len(w.recent))
		d := w.recent[i]
		used := d.N
		used[w.IntN(3)] *= 1.5 * w.Float64()
		w.ask(Op{Reports: []Report{{Kind: Settled, Charge: &d.Charge, Used: used}}})
		for i := range used {
			d.used[i] = min(d.N[i], used[i])
		}
		w.recent = slices.Delete(w.recent, i, i+1) // only the first counts
	case k < 24 && len(w.booked) > 0:
		i := w.IntN(len(w.booked))
		w.ask(Op{Action: Book, Back: []Charge{w.booked[i]}})
		w.booked = slices.Delete(w.booked, i, i+1)
	case k == 24:
		w.ask(Op{Reports: []Report{{Kind: Held, Wait: time.Duration(w.ExpFloat64() * float64(10*time.Second))}}})
	case k == 25:
		w.ask(Op{Reports: []Report{{Kind: Refused, Epoch: w.epoch, Wait: time.Second}}})
		w.ask(Op{Reports: []Report{{Kind: Succeeded, Epoch: w.epoch}}})
	case k == 26:
		// A call that goes while the clock is back counts from before: it is late by as much.
		back := time.Duration(w.Int64N(int64(hoursApart / 2)))
		w.off -= back
		w.pass(time.Duration(w.Float64() * float64(back))) // it comes forward again before it has caught up
		w.off += back
	case k == 27 && w.IntN(20) == 0:
		w.ask(Op{Action: Resume})
	default:
		w.pass(time.Duration(w.ExpFloat64() * float64(2*time.Second)))
	}
}

// check returns the most units in any window of the API and in any period.
func (w *hours) check(window time.Duration) (most, day float64) {
	slices.SortFunc(w.gone, func(a, b *departure) int { return cmp.Compare(a.at, b.at) })
	first, sum, days := 0, 0., make(map[int64]float64)
	for _, d := range w.gone {
		for w.gone[first].at <= d.at-window {
			sum -= w.gone[first].used[0]
			first++
		}
		sum += d.used[0]
		most = max(most, sum)
		p := int64(d.at/time.Second) / hoursDay
		days[p] += d.used[2]
		day = max(day, days[p])
	}
	return most, day
}

func TestNoHourBreaksAPromise(t *testing.T) {
	rounds := [...]int{2, 0, 20, 500}[deeper()+2]
	var passed time.Duration
	calls, full, moved := 0, 0, 0
	for round := range rounds {
		w := &hours{Rand: rand.New(rand.NewPCG(21, uint64(round))), real: 1_800_000_000 * time.Second}
		n, window := float64(10+w.IntN(30)), time.Duration(5+w.IntN(60))*time.Second
		day := float64(100 + w.IntN(400))
		w.limits = []Limit{moving(n, window+hoursApart), {Capacity: 3, Rate: 2}, daily(day)}
		for begin := w.real; w.real < begin+2*time.Hour; {
			w.step()
		}
		passed += 2 * time.Hour
		most, inDay := w.check(window)
		calls += len(w.gone)
		moved += w.moved
		if most > n+1e-6 || inDay > day+1e-6 {
			t.Errorf("round %d: %v of %v units in %v, and %v of %v in a period", round, most, n, window, inDay, day)
		}
		if most > n-2 {
			full++
		}
	}
	t.Logf("%v, %d calls, %d places moved to another period, %d of %d windows were full", passed, calls, moved, full, rounds)
	if full < rounds/2 {
		t.Errorf("only %d of %d windows were ever full", full, rounds)
	}
}
