package leak

import (
	"testing"
	"time"
)

// Units that counted in a window once are in no limit that is made of it when they have ended, nor
// do they stand for units of a leaky limit that have just been filled.
func TestWhatHasEndedIsInNoOtherKind(t *testing.T) {
	window, leaky, x := named(moving(5, time.Second)), named(Limit{Capacity: 5, Rate: 5}), Limit{Name: "x", Capacity: 5, Rate: 5}
	book := func(s *Stored, l Limit, n float64, now time.Duration) int {
		return len((&Op{Limits: []Limit{l}, Stamp: s.Stamp, Action: Book, Costs: []Units{{n}}}).Apply(s, now).Charges)
	}
	for _, replaced := range []bool{false, true} {
		var s Stored
		now := 10 * time.Second
		book(&s, window, 5, 0)
		if book(&s, leaky, 5, now) != 1 {
			t.Error("5 units of 10 s ago are in a leaky limit")
		}
		if replaced {
			(&Op{Limits: []Limit{leaky}, Action: Replace, Replacement: []Limit{window}}).Apply(&s, now)
		}
		if book(&s, window, 1, now) != 0 {
			t.Errorf("replaced %v: 5 units in a leaky limit are not in the window", replaced)
		}
	}
	var s Stored
	book(&s, window, 5, 0)
	book(&s, x, 5, time.Hour)
	if book(&s, leaky, 5, time.Hour) != 1 {
		t.Error("5 units of an hour ago, of a limit that another worker has, are in a leaky limit")
	}
}

// A key lasts as long as the log of any worker.
func TestAKeyLastsAsLongAsTheLogOfAnyWorker(t *testing.T) {
	hour := []Limit{named(moving(10, time.Hour))}
	for name, other := range map[string]Limit{"another limit": {Name: "x", Capacity: 5, Rate: 5}, "leaky": named(Limit{Capacity: 50, Rate: 5}), "shorter": named(moving(20, time.Second))} {
		var s Stored
		(&Op{Limits: hour, Action: Book, Costs: []Units{{10}}}).Apply(&s, 0)
		for range 2 {
			if r := (&Op{Limits: []Limit{other}, Action: Book, Costs: []Units{{1}}}).Apply(&s, 20*time.Second); r.Expire < 59*time.Minute {
				t.Errorf("%s: forgets the hour after %v", name, r.Expire)
			}
		}
	}
}

// A Resume sets the dial back for the logs of all workers: the calls of one that does not
// have the limit of another are not later than its dial.
func TestAResumeByAnotherWorkerForgetsNoCalls(t *testing.T) {
	window := []Limit{named(moving(1, time.Second))}
	for _, other := range []Limit{{Name: "x", Capacity: 2, Rate: 4}, named(Limit{Capacity: 2, Rate: 4}), named(daily(5))} {
		var s Stored
		now := 1_800_000_003 * time.Second
		ask := func(l []Limit, op Op) int {
			op.Limits, op.Periods = l, []Period{periodOf(now, 20)}
			return len(op.Apply(&s, now).Charges)
		}
		book := Op{Action: Book, Costs: []Units{{1}}}
		gone := ask(window, book)
		now += 50 * time.Millisecond
		ask([]Limit{other}, Op{Reports: []Report{{Kind: Held, Wait: time.Minute}}})
		ask([]Limit{other}, Op{Action: Resume})
		ask(window, Op{Action: Resume})
		if gone += ask(window, book); gone != 1 {
			t.Errorf("%v: %d calls within 50 ms of %v", other, gone, window[0])
		}
	}
}

// Workers may have limits of different kinds with one name. Each is held to its own, however often
// the others come between.
func TestWorkersWithLimitsOfOneNameKeepTheirOwnCount(t *testing.T) {
	day, month := Limit{Kind: Daily, Capacity: 5, Zone: "UTC"}, Limit{Kind: Monthly, Capacity: 50, Zone: "UTC"}
	berlin, window := Limit{Kind: Daily, Capacity: 50, Zone: "Europe/Berlin"}, Limit{Kind: Moving, Capacity: 100, Window: time.Second, Rate: 100}
	lengths := map[Limit]int64{day: 20, month: 2000, berlin: 90}
	for _, c := range [][2]Limit{{month, day}, {month, window}, {berlin, day}} {
		for _, bytes := range []bool{false, true} {
			var s Stored
			now := 1_800_000_003 * time.Second
			ask := func(l Limit, action Action, n float64) (units float64) {
				op := Op{Limits: []Limit{l}, Action: action, Costs: []Units{{n}}}
				if l.Kind.Calendar() {
					op.Periods = []Period{periodOf(now, lengths[l])}
				}
				units = n * float64(len(op.Apply(&s, now).Charges))
				if data, _ := s.MarshalBinary(); bytes && s.UnmarshalBinary(data) != nil {
					t.Fatal("not its own bytes")
				}
				return units
			}
			sum := ask(c[0], Book, 50)
			for range 3 {
				for range 2 { // in two of its days
					ask(c[1], Meter, 1)
					now += 12 * time.Second
				}
				sum += ask(c[0], Book, 1)
			}
			if sum != 50 {
				t.Errorf("%v beside %v: %v units of 50", c[0], c[1], sum)
			}
			if r := (&Op{Limits: []Limit{{Name: "x", Capacity: 1, Rate: 1}}}).Apply(&s, now); c[0] == month && r.Expire < 1000*time.Second {
				t.Errorf("%v beside %v: forgotten in %v", c[0], c[1], r.Expire)
			}
		}
	}
}

// What is in a leaky limit is in the calendar of today, although the key knows yesterday's only.
func TestALevelComesIntoTheCalendarOfItsTime(t *testing.T) {
	day, leaky := daily(100), named(Limit{Capacity: 100, Rate: 1e-3})
	leaky.Name = day.Name
	for _, replaced := range []bool{false, true} {
		var s Stored
		now := 1_800_000_003 * time.Second
		ask := func(l Limit, n float64) int {
			op := Op{Limits: []Limit{l}, Stamp: s.Stamp, Action: Book, Costs: []Units{{n}}, Periods: []Period{periodOf(now, 20)}}
			return len(op.Apply(&s, now).Charges)
		}
		ask(day, 10)
		now += 20 * time.Second
		if ask(leaky, 80) != 1 { // beside the 10 that the key knew last
			t.Fatal("no room for 80 of 90")
		}
		if replaced {
			(&Op{Limits: []Limit{leaky}, Action: Replace, Replacement: []Limit{day}}).Apply(&s, now)
		}
		if now += time.Second; ask(day, 11) != 0 || ask(day, 10) != 1 {
			t.Errorf("replaced %v: the units of the leaky limit are not in the day", replaced)
		}
	}
}
