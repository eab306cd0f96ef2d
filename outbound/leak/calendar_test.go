package leak

import (
	"fmt"
	"math/rand/v2"
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

// A clock that goes back over the start of a period and comes again lets no more calls go than
// the period has: neither the wall clock of a process, whose monotonic time goes on, nor the heir of a
// store, nor a clock of which only looks have seen the new period.
func TestAClockThatGoesBackOverTheStartOfAPeriodLosesNothing(t *testing.T) {
	const begins = 1_800_000_020*time.Second + Slack
	for _, c := range []struct {
		name  string
		unix  []time.Duration // of each step, from the start of the period on
		books []bool          // what fits, or only looks
		wall  bool            // the store's time goes on
		all   int             // calls that go
	}{
		{"wall clock", []time.Duration{-2500 * time.Millisecond, 10 * time.Millisecond, -30 * time.Millisecond, 10 * time.Millisecond}, []bool{true, true, true, true}, true, 10},
		{"wall clock, far", []time.Duration{10 * time.Millisecond, -10 * time.Second, 10 * time.Millisecond}, []bool{true, true, true}, true, 5},
		{"failover", []time.Duration{100 * time.Millisecond, -1600 * time.Millisecond, time.Second}, []bool{true, true, true}, false, 5},
		{"failover of a day that is half used", []time.Duration{-5 * time.Second, time.Millisecond, -1600 * time.Millisecond, time.Second}, []bool{true, true, true, true}, false, 10},
		{"looks", []time.Duration{-5 * time.Second, 500 * time.Millisecond, -400 * time.Millisecond, 600 * time.Millisecond}, []bool{true, false, true, true}, false, 10},
	} {
		w := &calendarWorld{Rand: rand.New(rand.NewPCG(9, 0)), length: 20, limits: []Limit{daily(5)}}
		all := 0
		for i, at := range c.unix {
			w.now, w.wall = begins+at, 0
			if c.wall {
				w.wall = time.Duration(i)*time.Second - w.now
			}
			for w.ask(Op{}); c.books[i]; all++ {
				if r := w.ask(Op{Action: Book, Costs: []Units{{1}}}); r.Refused {
					break
				}
			}
		}
		if all != c.all {
			t.Errorf("%s: %d calls go, want %d", c.name, all, c.all)
		}
	}
}

// A booking for which there is no place elsewhere stays, and what the step reports counts once.
func TestABookingThatCannotMoveStays(t *testing.T) {
	w := &calendarWorld{Rand: rand.New(rand.NewPCG(10, 0)), now: 1_800_000_003 * time.Second, length: 20, limits: []Limit{daily(2), {Capacity: 1, Rate: 1}}}
	book := func(op Op) Reply {
		op.Action, op.Wait = Book, time.Hour
		return w.ask(op)
	}
	first := book(Op{Costs: []Units{{2, 1}}}).Charges[0]
	book(Op{Costs: []Units{{1}}})
	c := book(Op{Costs: []Units{{1}}}).Charges[0]
	before := w.Stored.Clone()
	if r := book(Op{Costs: []Units{{2}}, Move: &c}); r.Refused || len(r.Charges) > 0 || r.Changed {
		t.Errorf("moved for more: %+v", r)
	}
	if !Equal(w.Limits, before.Limits) || w.State.Last != before.State.Last || (*w.State.Logs)[0].Calendar != (*before.State.Logs)[0].Calendar || (*w.State.Logs)[0].Total != (*before.State.Logs)[0].Total {
		t.Errorf("%+v, want %+v", w.Stored, before)
	}
	r := book(Op{Costs: []Units{{1}}, Move: &c, Reports: []Report{{Kind: Settled, Charge: &first, Used: Units{1.5, 1}}, {Kind: Held, Wait: 50 * time.Second}}})
	if r.Refused || len(r.Charges) > 0 || !r.Changed || r.State.Rem != 50*time.Second {
		t.Errorf("moved beyond the next period: %+v", r)
	}
	if k := (*w.State.Logs)[0].Calendar; k.This != 1.5 || k.Coming != 2 {
		t.Errorf("%v units in this period and %v in the next, want 1.5 and 2", k.This, k.Coming)
	}
}

// Places that a change of the limits, or a Resume, makes void take nothing of the next period.
// Those that stand do: of calls that go within Deaf of a change.
func TestVoidPlacesTakeNothingOfTheNextPeriod(t *testing.T) {
	const end = 1_800_000_020 * time.Second
	for _, action := range []Action{Replace, Resume} {
		for at, left := range map[time.Duration][2]float64{-17 * time.Second: {0, 0}, -2*time.Second - 1: {0, 0}, -1500 * time.Millisecond: {1, 0}, -Slack - 1: {1, 0}, -Slack: {2, 2}} {
			w := &calendarWorld{Rand: rand.New(rand.NewPCG(11, 0)), now: end + at, length: 20, limits: []Limit{daily(2)}}
			w.ask(Op{Action: Book, Costs: []Units{{2}}})
			w.ask(Op{Action: Book, Costs: []Units{{1}}, Wait: time.Hour})
			w.ask(Op{Action: action, Replacement: []Limit{daily(3)}, Unset: true})
			want := left[0]
			if action == Resume {
				want = left[1]
			}
			if c := (*w.State.Logs)[0].Calendar; c.This != 2 || c.Coming != want {
				t.Errorf("%v at %v of the end: %v units in this period and %v in the next, want 2 and %v", action, at, c.This, c.Coming, want)
			}
		}
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

// Workers may know one limit by the calendars of many zones, each with a log of its own.
func TestOfTooManyLogsTheOneThatEndsFirstIsForgottenAndGivesNothingBack(t *testing.T) {
	w := &calendarWorld{Rand: rand.New(rand.NewPCG(8, 0)), now: 1_800_000_003 * time.Second, length: 1000}
	in := func(zone int) {
		w.limits = []Limit{{Name: "day", Kind: Daily, Capacity: 100, Zone: fmt.Sprint("Zone/", zone)}}
	}
	var first Charge
	for zone := range maxLogs {
		in(zone)
		r := w.ask(Op{Action: Book, Costs: []Units{{1}}})
		if zone == 0 {
			first = r.Charges[0]
		}
	}
	if n := len(*w.State.Logs); n != maxLogs || w.Version != 0 {
		t.Fatalf("%d logs, version %d", n, w.Version)
	}
	in(maxLogs)
	w.ask(Op{Action: Book, Costs: []Units{{1}}})
	if n := len(*w.State.Logs); n != maxLogs || w.Version != 2 {
		t.Errorf("%d logs, version %d", n, w.Version)
	}
	in(0)
	before := w.ask(Op{}).State.Level[0].Level
	w.ask(Op{Action: Book, Back: []Charge{first}})
	if after := w.ask(Op{}).State.Level[0].Level; before < 1 || after != before {
		t.Errorf("%v units, and %v when a call of the log that was forgotten came back", before, after)
	}
}
