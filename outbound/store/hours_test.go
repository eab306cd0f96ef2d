package store

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// hours is a key with a moving window, a leaky limit and a calendar, which change, and all keep
// their promise at once, through hours of everything that can happen to a key.
type hours struct {
	*rand.Rand
	Stored
	limits []Limit
	rules  []rule        // that have been in force, the last of them is
	real   time.Duration // what no clock bends
	off    time.Duration // of the store's clock
	booked []*departure
	recent []*departure
	gone   []*departure
	epoch  int64
	moved  int // places that a hold has moved to another period
}

// rule is what the API promises to take from some time on: n units in a window, and day in each
// period.
type rule struct {
	n, day float64
	window time.Duration
	since  time.Duration // the key may have forgotten the calls from before: the window was shorter
}

// departure is a call, and when it has gone what it has really cost, as far as it had acquired it.
type departure struct {
	Charge
	rule int // that it was booked by
	at   time.Duration
	used Units
}

const (
	hoursApart = 10 * time.Millisecond // what the law adds to the API's window
	hoursDay   = 600                   // seconds of a period
)

func (w *hours) ask(op Op) Reply {
	op.Limits, op.Number = w.limits, w.Number
	now := w.real + w.off
	op.Periods = make([]Period, len(w.limits))
	op.Periods[2] = periodOf(now+w.skew(), hoursDay)
	r := op.Apply(&w.Stored, now)
	if r.Stale { // the key was new
		op.Number = r.Number
		r = op.Apply(&w.Stored, now)
	}
	if r.Untimely { // the worker's clock is another one, or the store's was set back
		op.Periods[2] = periodOf(r.State.Unix, hoursDay)
		r = op.Apply(&w.Stored, now)
	}
	w.epoch = r.State.Epoch
	if op.Action != Replace && r.Number > op.Number { // a hold has made later reservations void
		w.void(&r)
	}
	return r
}

// void returns the reservations that are void since the Number has changed: those that their processes
// cannot use before they hear of it.
func (w *hours) void(r *Reply) {
	var void []Charge
	w.booked = slices.DeleteFunc(w.booked, func(d *departure) bool {
		in, _ := r.State.Due(d.Place)
		if in -= max(0, r.State.Rem); in > MaxReplyAge {
			void = append(void, d.Charge)
		}
		return in > MaxReplyAge
	})
	w.ask(Op{Action: Book, Unused: void})
}

// skew is by how much another clock than the store's is ahead: not wholly by a second, because
// calls leave late and the store's clock wavers.
func (w *hours) skew() time.Duration {
	const most = time.Second - 2*hoursApart
	return time.Duration(w.Int64N(2*int64(most))) - most
}

// set sets other limits, n, window and day at random. Of the places only those stand that their
// workers may use before they hear of it.
func (w *hours) set() {
	is := rule{n: float64(10 + w.IntN(30)), window: time.Duration(5+w.IntN(60)) * time.Second, day: float64(50 + w.IntN(150))}
	l := moving(is.n, is.window+hoursApart)
	l.Name = "window"
	limits := []Limit{l, {Capacity: float64(2 + w.IntN(3)), Rate: float64(1 + w.IntN(3))}, daily(is.day)}
	if len(w.rules) > 0 {
		was := w.rules[len(w.rules)-1]
		if is.since = was.since; is.window > was.window {
			is.since = max(is.since, w.real-was.window)
		}
		r := w.ask(Op{Action: Replace, Replacement: limits})
		w.limits = limits
		w.void(&r)
	}
	w.limits, w.rules = limits, append(w.rules, is)
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
		case c.Void(r.State.Unix):
			w.moved++
			w.ask(Op{Action: Book, Unused: []Charge{c.Charge}})
		default:
			c.at, c.used = w.real+time.Duration(w.Int64N(int64(hoursApart/2))), c.N
			w.gone = append(w.gone, c)
			w.recent = append(w.recent[max(0, len(w.recent)-9):], c)
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
		for _, c := range w.ask(op).Charges {
			w.booked = append(w.booked, &departure{Charge: c, rule: len(w.rules) - 1})
		}
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
		w.ask(Op{Action: Book, Unused: []Charge{w.booked[i].Charge}})
		w.booked = slices.Delete(w.booked, i, i+1)
	case k == 24 && w.IntN(4) == 0:
		w.ask(Op{Reports: []Report{{Kind: Held, Wait: time.Duration(w.ExpFloat64() * float64(10*time.Second))}}})
	case k == 25 && w.IntN(20) == 0: // slow-downs make windows longer than the API's
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
	case k == 28 && w.IntN(5) == 0:
		w.set()
	default:
		w.pass(time.Duration(w.ExpFloat64() * float64(2*time.Second)))
	}
}

// check returns what goes beyond the rules, or "", and whether a window was full. Each call counts
// by the newest rule that any call has been booked by which goes with it, and reaches an API
// whose clock is another one.
func (w *hours) check() (wrong string, full bool) {
	slices.SortFunc(w.gone, func(a, b *departure) int { return cmp.Compare(a.at, b.at) })
	days := make(map[int64]float64)
	for i, d := range w.gone {
		newest := d.rule
		for j := i; j >= 0 && w.gone[j].at > d.at-2*hoursApart; j-- {
			newest = max(newest, w.gone[j].rule)
		}
		is, sum := w.rules[newest], 0.
		for j := i; j >= 0 && w.gone[j].at > max(d.at-is.window, is.since); j-- {
			sum += w.gone[j].used[0]
		}
		if full = full || sum > is.n-2; sum > is.n+1e-6 {
			return fmt.Sprintf("%v of %v units in %v, by rule %d", sum, is.n, is.window, newest), full
		}
		p := int64((d.at+w.skew())/time.Second) / hoursDay
		if days[p] += d.used[2]; days[p] > max(is.day, w.rules[d.rule].day)+1e-6 && d.used[2] > 0 {
			return fmt.Sprintf("%v of %v units in a period, by rule %d", days[p], is.day, newest), full
		}
	}
	return "", full
}

// No hour of random calls breaks a promise of the law.
func TestSearch_NoHourBreaksAPromise(t *testing.T) {
	rounds := [...]int{2, 0, 20, 500}[deeper()+2]
	var passed time.Duration
	calls, full, moved, changes := 0, 0, 0, 0
	for round := range rounds {
		w := &hours{Rand: rand.New(rand.NewPCG(21, uint64(round))), real: 1_800_000_000 * time.Second}
		w.set()
		for begin := w.real; w.real < begin+2*time.Hour; {
			w.step()
		}
		passed += 2 * time.Hour
		wrong, filled := w.check()
		if wrong != "" {
			t.Errorf("round %d: %s", round, wrong)
		}
		if filled {
			full++
		}
		calls, moved, changes = calls+len(w.gone), moved+w.moved, changes+len(w.rules)-1
	}
	t.Logf("%v, %d calls, %d changes of limits, %d places moved to another period, %d of %d rounds had a full window", passed, calls, changes, moved, full, rounds)
	if full < rounds/2 || changes < rounds {
		t.Errorf("%d changes, and only %d of %d rounds had a full window", changes, full, rounds)
	}
}
