package leak

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// periodOf returns the period of a calendar whose periods are of so many seconds.
func periodOf(unix time.Duration, length int64) Period {
	begin := int64((unix - Slack) / time.Second)
	begin -= (begin%length + length) % length
	return Period{begin, begin + length, begin + 2*length, begin + 3*length}
}

func daily(n float64) Limit { return Limit{Name: "day", Kind: Daily, Capacity: n, Zone: "UTC"} }

// calendarWorld is a key with a calendar, whose calls reach an API with a clock of its own.
type calendarWorld struct {
	*rand.Rand
	Stored
	limits  []Limit
	now     time.Duration // the store's Unix time
	length  int64         // of a period, in seconds
	booked  []Charge
	gone    []Charge
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
		r := op.Apply(&w.Stored, w.now)
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
		if Moved(c.Up[0], w.now) {
			w.ask(Op{Action: Book, Back: []Charge{c}})
			return true
		}
		late := time.Duration(w.Int64N(int64(2*Slack))) - Slack // of the API's clock, and on the way
		at := int64((w.now+late)/time.Second) / w.length
		w.arrived[at] += c.N[0]
		w.most = max(w.most, w.arrived[at])
		w.gone = append(w.gone[max(0, len(w.gone)-3):], c)
		return true
	})
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
func TestNoHistoryBreaksACalendar(t *testing.T) {
	full := 0
	for round := range [...]int{40, 0, 400, 10_000}[deeper()+2] {
		w := &calendarWorld{Rand: rand.New(rand.NewPCG(5, uint64(round))), now: 1_800_000_000 * time.Second, length: 20, arrived: make(map[int64]float64)}
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
			case k < 14 && len(w.gone) > 0: // it has not gone after all, or has cost less
				c := &w.gone[len(w.gone)-1]
				w.ask(Op{Reports: []Report{{Kind: Settled, Charge: c, Used: c.N}}})
			case k < 15 && len(w.booked) > 0:
				i := w.IntN(len(w.booked))
				w.ask(Op{Action: Book, Back: []Charge{w.booked[i]}})
				w.booked = slices.Delete(w.booked, i, i+1)
			case k < 16: // to the end of the period, or nearly
				end := ends(periodOf(w.now, w.length).End) - w.now
				w.pass(max(1, end-time.Duration(w.Int64N(int64(4*Slack)))))
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

// A booking goes to the next period if this one is full, and no further.
func TestABookingGoesToTheNextPeriodAndNoFurther(t *testing.T) {
	w := &calendarWorld{Rand: rand.New(rand.NewPCG(6, 0)), now: 1_800_000_003 * time.Second, length: 20, limits: []Limit{daily(2)}}
	book := func(wait time.Duration) Reply {
		return w.ask(Op{Action: Book, Costs: []Units{{1}}, Wait: wait})
	}
	for i, want := range []time.Duration{0, 0, 18 * time.Second, 18 * time.Second} {
		r := book(time.Hour)
		if len(r.Charges) != 1 {
			t.Fatalf("booking %d: %+v", i, r)
		}
		if in, _ := r.State.Due(r.Charges[0].Place); in != want {
			t.Errorf("booking %d goes after %v, want %v", i, in, want)
		}
	}
	r := book(time.Hour)
	if !r.Refused || r.Wait != 38*time.Second || r.Limit != 0 {
		t.Errorf("beyond the next period: refused %v, for %v, by %d", r.Refused, r.Wait, r.Limit)
	}
	if l := r.State.Level[0]; l.Level != 2 || time.Duration(l.Top) != 18*time.Second || time.Duration(l.Ret) != 38*time.Second {
		t.Errorf("the level is %+v", l)
	}
	w.now += 18 * time.Second
	if r = book(0); !r.Refused || r.Wait != 20*time.Second || r.State.Level[0].Level != 2 {
		t.Errorf("in the next period: %+v", r)
	}
}

// A call that goes within a second of the end counts in both periods, and gives back to both.
func TestACallNearTheEndCountsInBothPeriods(t *testing.T) {
	for _, late := range []time.Duration{-Slack, 0, Slack - 1} {
		for _, settled := range []time.Duration{0, 2 * time.Second} {
			w := &calendarWorld{Rand: rand.New(rand.NewPCG(7, 0)), now: 1_800_000_020*time.Second + late, length: 20, limits: []Limit{daily(2)}}
			r := w.ask(Op{Action: Book, Costs: []Units{{1}}})
			if len(r.Charges) != 1 {
				t.Fatalf("%+v", r)
			}
			end := w.now + 2*time.Second
			var other Stored
			other, w.now = w.Stored.Clone(), end
			if r := w.ask(Op{}); r.State.Level[0].Level != 1 {
				t.Errorf("at %v of the end: %v units in the next period, want 1", late, r.State.Level[0].Level)
			}
			w.Stored, w.now = other, end-2*time.Second+settled
			w.ask(Op{Reports: []Report{{Kind: Settled, Charge: &r.Charges[0]}}})
			w.now = end
			if r := w.ask(Op{}); r.State.Level[0].Level != 0 {
				t.Errorf("at %v of the end, settled %v later: %v units in the next period, want 0", late, settled, r.State.Level[0].Level)
			}
		}
	}
}

// The periods of a call, and the first time at which it has room.
func TestACalendarWaitsForRoomInEachPeriodOfACall(t *testing.T) {
	const end, next = 100 * time.Second, 200 * time.Second
	l := daily(2)
	for _, c := range []struct {
		this, coming float64
		n            float64
		t, at        time.Duration
		ok           bool
		of           float64
	}{
		{1, 0, 1, 0, 0, true, 100},
		{1, 2, 1, 0, 0, true, 100},
		{1, 2, 1, end - 1, next + Slack, false, 0},                      // it would count in the next period as well
		{1, 1, 1, end - 1, end - 1, true, -100},                         // within a second of the end
		{1, 0, 1, end - Slack - 1, end - Slack - 1, true, 100},          // a moment before that
		{2, 0, 1, 5, end + Slack, true, 200},                            // full: when the next begins
		{2, 1, 1, end + Slack, end + Slack, true, 200},                  // it has begun
		{2, 1, 2, 5, next + Slack, false, 0},                            // both are full
		{2, 1, 1, next - Slack - 1, next - Slack - 1, true, 200},        // a moment before the next one's end
		{2, 1, 1, next - Slack, next + Slack, false, 0},                 // that is further than can be booked
		{2, 0, 1, next + 5*time.Second, next + 5*time.Second, false, 0}, // and so is this
	} {
		k := Calendar{End: 100, Next: 200, This: c.this, Coming: c.coming}
		at, ok := k.wait(&l, c.n, c.t)
		if at != c.at || ok != c.ok {
			t.Errorf("%+v: at %v, %v", c, at, ok)
		}
		if ok {
			if of := k.fill(c.n, at); of != c.of {
				t.Errorf("%+v: it is of the period %v", c, of)
			}
		}
	}
}

// A call is moved if it would count in a period that it was not charged to.
func TestMovedIsIntoAPeriodThatWasNotCharged(t *testing.T) {
	for _, c := range []struct {
		of    float64
		unix  time.Duration
		moved bool
	}{
		{100, 50 * time.Second, false},
		{100, 100*time.Second - Slack - 1, false},
		{100, 100*time.Second - Slack, true},
		{-100, 100 * time.Second, false},
		{-100, 100*time.Second + Slack, true},
	} {
		if Moved(c.of, c.unix) != c.moved {
			t.Errorf("of %v, at %v: moved %v", c.of, c.unix, !c.moved)
		}
	}
}

// What a zone's name says changes nothing for the law: only the periods do.
func TestPeriodsThatAreNotOfTheTimeDoNothing(t *testing.T) {
	const now = 1_800_000_003 * time.Second
	for _, periods := range [][]Period{nil, {}, {{}}, {periodOf(now+40*time.Second, 20)}, {periodOf(now-40*time.Second, 20)}, {{5, 4, 3, 2}}, {{-1 << 62, 1 << 62, 1<<62 + 1, 1<<62 + 2}}} {
		var s Stored
		op := Op{Limits: []Limit{daily(2)}, Periods: periods, Action: Book, Costs: []Units{{1}}}
		if r := op.Apply(&s, now); !r.Untimely || !r.Stale || r.Unix != now || len(r.Charges) > 0 || !s.missing() {
			t.Errorf("%v: %+v, %+v", periods, r, s)
		}
	}
	var s Stored // those of the period before are told, and the store goes on to the next
	op := Op{Limits: []Limit{daily(2)}, Periods: []Period{periodOf(now-20*time.Second, 20)}, Action: Book, Costs: []Units{{1}}}
	if r := op.Apply(&s, now); r.Untimely || len(r.Charges) != 1 || r.State.Level[0].Level != 1 {
		t.Errorf("%+v", r)
	}
}

// A period that is garbage is full, and opens with its end, or with a Resume.
func TestGarbageInACalendarIsFullAndOpens(t *testing.T) {
	for _, resumed := range []bool{false, true} {
		w := &calendarWorld{Rand: rand.New(rand.NewPCG(8, 0)), now: 1_800_000_003 * time.Second, length: 20, limits: []Limit{daily(2)}}
		w.ask(Op{Action: Book, Costs: []Units{{1}}})
		w.State.Speed = -1
		if r := w.ask(Op{Action: Book, Costs: []Units{{1}}}); !r.Garbage || !r.Refused || r.Wait != 18*time.Second {
			t.Fatalf("%+v", r)
		}
		if resumed {
			w.ask(Op{Action: Resume})
		} else {
			w.now += 18 * time.Second
		}
		if r := w.ask(Op{Action: Book, Costs: []Units{{2}}}); len(r.Charges) != 1 {
			t.Errorf("resumed %v: %+v", resumed, r)
		}
	}
}

func ExampleOp_ApplyAt() {
	op := &Op{Limits: []Limit{daily(2)}, Action: Book, Costs: []Units{{1}}}
	var s Stored
	const unix = 1_800_000_000 * time.Second
	r := op.ApplyAt(&s, time.Minute, unix)
	fmt.Println(r.Untimely, r.Unix == unix)
	op.Periods = []Period{periodOf(r.Unix, 86_400)}
	r = op.ApplyAt(&s, time.Minute, unix)
	fmt.Println(r.Untimely, r.State.Level[0].Level)
	// Output:
	// true true
	// false 1
}
