package outbound

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hear returns the bucket's clock of now.
func hear(t *testing.T, b *Bucket) *Clock {
	t.Helper()
	var k BookRequest
	if err := b.Book(ctx, &k); err != nil {
		t.Fatal(err)
	}
	return &k.Clock
}

// places books n places and returns their tickets, and when they are due.
func places(t *testing.T, b *Bucket, n int) (tickets []string, due []time.Time) {
	t.Helper()
	k := BookRequest{Wait: time.Hour, Horizon: time.Hour}
	for range n {
		k.Costs = append(k.Costs, Cost{1})
	}
	if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != n {
		t.Fatal(len(k.Tickets), err)
	}
	for _, p := range k.Tickets {
		tickets, due = append(tickets, p.String()), append(due, k.Clock.Due(p))
	}
	return tickets, due
}

func TestTicket_TextSaysWhenItIsDue(t *testing.T) {
	for _, limits := range [][]Limit{
		{{Capacity: 2, LeakRate: 1}}, {PerSecond(2), Window(5, time.Minute)}, {Window(3, time.Minute)}, {Daily(100, time.UTC)},
	} {
		bothWays(t, func(t *testing.T, b *Bucket) {
			time.Sleep(time.Minute) // no call leaves in the first second of a day
			tickets, due := places(t, b, 10)
			check := func(what string, later time.Duration) {
				t.Helper()
				k := hear(t, b)
				for i, m := range tickets {
					if at, ok := k.DueText(m); !ok || at.Sub(due[i].Add(later)).Abs() > time.Microsecond {
						t.Errorf("%v, %s: place %d is due %v, %v, want %v later", limits, what, i, at, ok, later)
					}
				}
			}
			check("now", 0)
			hold := b.Hold
			if _, window := limits[len(limits)-1].Each(); window > 0 { // whose reservations a hold makes void
				hold = b.Pause
			}
			if err := hold(ctx, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			k := hear(t, b) // those that were due before the hold are not due in it
			for i, m := range tickets {
				if at, ok := k.DueText(m); !ok || at.Before(time.Now().Add(10*time.Second)) || at.After(due[i].Add(10*time.Second+time.Microsecond)) {
					t.Errorf("%v, held: place %d is due in %v, %v", limits, i, time.Until(at), ok)
				}
			}
			time.Sleep(15 * time.Second)
			k = hear(t, b)
			if at, ok := k.DueText(tickets[0]); !ok || (time.Since(at)-5*time.Second).Abs() > time.Millisecond {
				t.Errorf("%v, late: the first place was due %v ago, %v", limits, time.Since(at), ok)
			}
		}, limits...)
	}
}

// A place that had passed when a hold began is as much before the end of the hold, and none is before one that was
// booked before it.
func TestTicket_HoldMovesPassedReservations(t *testing.T) {
	bothWays(t, func(t *testing.T, b *Bucket) {
		tickets, due := places(t, b, 10)
		time.Sleep(5 * time.Second)
		if err := b.Hold(ctx, time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		k := hear(t, b)
		for i, m := range tickets {
			if at, ok := k.DueText(m); !ok || at.Sub(due[i].Add(time.Minute)).Abs() > time.Microsecond {
				t.Errorf("place %d is due %v, %v, want a minute after %v", i, at, ok, due[i])
			}
		}
	}, Limit{Capacity: 1, LeakRate: 1})
}

func TestTicket_TextIsVoidAfterResumeOrNewLimits(t *testing.T) {
	for name, change := range map[string]func(b *Bucket) error{
		"resumed":    func(b *Bucket) error { return b.Resume(ctx) },
		"new limits": func(b *Bucket) error { return b.SetLimits(ctx, Limit{Capacity: 1, LeakRate: 5}) },
	} {
		bothWays(t, func(t *testing.T, b *Bucket) {
			tickets, _ := places(t, b, 20)
			if err := change(b); err != nil {
				t.Fatal(err)
			}
			k := hear(t, b)
			for i, m := range tickets {
				if at, ok := k.DueText(m); ok {
					t.Fatalf("%s: place %d is due %v", name, i, at)
				}
			}
			tickets, due := places(t, b, 3)
			if at, ok := hear(t, b).DueText(tickets[2]); !ok || !at.Equal(due[2]) {
				t.Errorf("%s: a new place is due %v, %v, want %v", name, at, ok, due[2])
			}
		}, Limit{Capacity: 1, LeakRate: 2})
	}
}

func TestTicket_ForgedOrForeignTextIsNotDue(t *testing.T) {
	bothWays(t, func(t *testing.T, b *Bucket) {
		tickets, _ := places(t, b, 10)
		time.Sleep(time.Second)
		k := hear(t, b)
		c := &k.state
		bad := []string{
			"", " ", "1-", "1-::", "1-0:0:0", "2" + tickets[0][1:], tickets[0] + ":", tickets[0] + " ", strings.ToUpper(tickets[0]) + "X", "+" + tickets[0],
			strings.Repeat("1", 1<<20), "1-" + strings.Repeat("z", 40), strings.Replace(tickets[0], ":", ":+", 1), strings.Replace(tickets[0], ":", ":0", 1),
			ticketOf(int64(c.Born)+1, k.number, 0), ticketOf(int64(c.Born), k.number+1, 0), ticketOf(int64(c.Born), k.number-2, 0),
			ticketOf(int64(c.Born), k.number, int64(c.Dial()+c.Last)+int64(2*time.Millisecond)),
			ticketOf(int64(c.Born), k.number, math.MaxInt64), ticketOf(math.MinInt64, math.MinInt64, math.MinInt64),
		}
		for _, m := range bad {
			if at, ok := k.DueText(m); ok {
				t.Errorf("%.60q is due %v", m, at)
			}
		}
		if _, ok := k.DueText(tickets[9]); !ok {
			t.Error("the last place is not known")
		}
		if at, ok := k.DueText(ticketOf(int64(c.Born), k.number, math.MinInt64)); ok && at.After(time.Now()) {
			t.Errorf("a place of long ago is due in %v", time.Until(at))
		}
	}, Limit{Capacity: 1, LeakRate: 2})
	if m := (Ticket{}).String(); m != "" {
		t.Errorf("the zero ticket is %q", m)
	}
	if _, ok := new(Clock).DueText(ticketOf(0, 0, 0)); ok {
		t.Error("a clock that was never heard knows a place")
	}
}

// Whatever a ticket says, it is due no later than the last place that is booked.
func FuzzTicket_TextIsDueByTheLast(f *testing.F) {
	b := Must(NewBucket("k", Limit{Capacity: 1, LeakRate: 1}))
	k := BookRequest{Costs: []Cost{{1}, {1}}, Wait: time.Hour, Horizon: time.Hour}
	if err := b.Book(ctx, &k); err != nil {
		f.Fatal(err)
	}
	good := k.Tickets[1].String()
	last := k.Clock.Due(k.Tickets[1])
	f.Add(good, int64(0))
	f.Add("1-0:0:0", int64(1))
	f.Add("", int64(math.MinInt64))
	f.Add(strings.Repeat("1-", 30), int64(time.Hour))
	f.Fuzz(func(t *testing.T, m string, shift int64) {
		place := strconv.FormatInt(int64(k.Tickets[1].call.charge[0].Place)+shift, 16)
		for _, m := range []string{m, good[:strings.LastIndex(good, ":")+1] + place} {
			at, ok := k.Clock.DueText(m)
			if ok && at.After(last.Add(moved)) {
				t.Errorf("%q is due %v after the last place", m, at.Sub(last))
			}
			if ok && m != ticketOf(readAll(m)) {
				t.Errorf("%q has another form", m)
			}
		}
		if at, ok := k.Clock.DueText(good); !ok || !at.Equal(last) {
			t.Errorf("the place itself is due %v, %v", at, ok)
		}
	})
}

func readAll(m string) (born, version, place int64) {
	born, version, place, _ = readTicket(m)
	return born, version, place
}

func ticketOf(born, version, place int64) string {
	return fmt.Sprintf(ticketText, born, version, place)
}
