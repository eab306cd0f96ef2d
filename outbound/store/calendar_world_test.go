package store

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// calendarWorld is a key with a calendar, whose calls reach an API with a clock of its own.
type calendarWorld struct {
	*rand.Rand
	Stored
	limits  []Limit
	now     time.Duration // the store's Unix time
	wall    time.Duration // by how much the store's own time is ahead of it
	length  int64         // of a period, in seconds
	off     time.Duration // of that, by how much it is wrong
	booked  []Charge
	gone    []counted
	arrived map[int64]float64 // units, by the API's periods
	most    float64
	epoch   int64
}

// ask carries an operation out. off is how far the worker's clock is off.
func (w *calendarWorld) ask(op Op) Reply {
	off := time.Duration(w.Int64N(int64(4*time.Second))) - 2*time.Second
	op.Limits = w.limits
	for {
		op.Periods = make([]Period, len(w.limits))
		for i := range op.Periods {
			op.Periods[i] = periodOf(w.now+off, w.length)
		}
		r := op.ApplyAt(&w.Stored, w.now+w.wall, w.now)
		if !r.Untimely {
			w.epoch = r.State.Epoch
			return r
		}
		if off == 0 {
			panic("the periods of the store's own time are not those")
		}
		off = 0
	}
}

// leave lets the calls go that are due, and gives back those that were moved.
func (w *calendarWorld) leave() {
	r := w.ask(Op{})
	w.booked = slices.DeleteFunc(w.booked, func(c Charge) bool {
		in, _ := r.State.Due(c.Place)
		if c.Born != r.State.Born {
			return true
		}
		if in > 0 {
			return false
		}
		if c.Void(w.now) {
			w.ask(Op{Action: Book, Unused: []Charge{c}})
			return true
		}
		late := time.Duration(w.Int64N(int64(Slack))) - Slack/2 // of the API's clock, and on the way
		at := int64((w.now-w.off+late)/time.Second) / w.length
		w.arrive(at, c.N[0])
		w.gone = append(w.gone[max(0, len(w.gone)-3):], counted{c, at})
		return true
	})
}

// counted is a call that has gone, and the API's period in which it has arrived.
type counted struct {
	Charge
	at int64
}

func (w *calendarWorld) arrive(at int64, n float64) {
	w.arrived[at] += n
	w.most = max(w.most, w.arrived[at])
}

// settle says what a call that has gone has cost. If that was less, so it was from the first, for
// the API.
func (w *calendarWorld) settle(i int, used float64) {
	c := &w.gone[i]
	if c.Settled {
		return
	}
	w.ask(Op{Reports: []Report{{Kind: Settled, Charge: &c.Charge, Used: Units{used, c.N[1]}}}})
	c.Settled = true
	if used < c.N[0] {
		w.arrived[c.at] += used - c.N[0]
	}
}

// step makes the store's clock wrong by so much.
func (w *calendarWorld) step(off time.Duration) {
	w.now += off - w.off
	w.off = off
}

// due returns how long it is until the next booked call goes, at most d.
func (w *calendarWorld) due(d time.Duration) time.Duration {
	r := w.ask(Op{})
	for i := range w.booked {
		in, _ := r.State.Due(w.booked[i].Place)
		d = min(d, max(in, 1))
	}
	return d
}

func (w *calendarWorld) pass(d time.Duration) {
	for d > 0 {
		x := w.due(d)
		w.now += x
		d -= x
		w.leave()
	}
}

// No period of an API has more than n, whose clock is off by less than a second, through
// returns, holds and slow-downs, and beside a leaky limit.
func TestSearch_NoHistoryBreaksACalendar(t *testing.T) {
	full := 0
	for round := range [...]int{40, 0, 400, 10_000}[deeper()+2] {
		w := &calendarWorld{Rand: rand.New(rand.NewPCG(5, uint64(round))), now: 1_800_000_000 * time.Second, length: 20, arrived: make(map[int64]float64)}
		if round%3 == 0 {
			w.wall = -w.now + time.Hour
		}
		n := float64(1 + w.IntN(4))
		if w.limits = []Limit{daily(n)}; round%2 == 0 {
			w.limits = append(w.limits, Limit{Capacity: 1, Rate: 2})
		}
		for range 150 {
			switch k := w.IntN(20); {
			case k < 12:
				r := w.ask(Op{Action: Book, Costs: []Units{{min(n, float64(1+w.IntN(2))), 1}}, Wait: time.Duration(w.Int64N(int64(30 * time.Second)))})
				w.booked = append(w.booked, r.Charges...)
				w.leave()
			case k < 14 && len(w.gone) > 0: // it has not gone after all, or has cost less, or more
				w.settle(len(w.gone)-1-w.IntN(min(3, len(w.gone))), [...]float64{0, 0.5, 3}[w.IntN(3)])
			case k < 15 && len(w.booked) > 0:
				i := w.IntN(len(w.booked))
				w.ask(Op{Action: Book, Unused: []Charge{w.booked[i]}})
				w.booked = slices.Delete(w.booked, i, i+1)
			case k < 16: // to the end of the period, or nearly
				end := time.Duration(periodOf(w.now, w.length).End)*time.Second + Slack - w.now
				w.pass(max(1, end-time.Duration(w.Int64N(int64(4*Slack)))))
			case k < 17 && w.IntN(3) == 0: // the store's clock, and that of its heir
				w.step(time.Duration(w.Int64N(int64(Slack))) - Slack/2)
			case k < 17 && w.IntN(2) == 0 && len(w.booked) > 0:
				c := &w.booked[len(w.booked)-1]
				r := w.ask(Op{Action: Book, Move: c, Costs: []Units{{min(n, float64(1+w.IntN(2))), 1}}})
				if r.Moved && len(r.Charges) == 0 {
					w.booked = w.booked[:len(w.booked)-1]
				} else if r.Moved {
					*c = r.Charges[0]
				}
				w.leave()
			case k < 17 && w.IntN(2) == 0:
				w.ask(Op{Reports: []Report{{Kind: Held, Wait: time.Duration(w.Int64N(int64(15 * time.Second)))}}})
			case k < 18 && w.IntN(3) == 0:
				w.ask(Op{Reports: []Report{{Kind: Refused, Epoch: w.epoch, Wait: time.Second}, {Kind: Succeeded, Epoch: w.epoch + 1}}})
			default:
				w.pass(time.Duration(w.Int64N(int64(8 * time.Second))))
			}
		}
		if w.most > n {
			t.Fatalf("round %d: %v units in a period of %v", round, w.most, n)
		}
		if w.most == n {
			full++
		}
	}
	if full == 0 {
		t.Error("no period was ever full")
	}
}

// periodOf returns the period of a length in seconds that a Unix time is in.
func periodOf(unix time.Duration, length int64) Period {
	begin := int64(unix/time.Second) / length * length
	return Period{begin, begin + length, begin + 2*length}
}

func daily(n float64) Limit { return Limit{Name: "day", Kind: Daily, Capacity: n, Zone: "UTC"} }
