package outbound

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

// clockOf returns the bucket's clock as of this time.
func clockOf(t *testing.T, b *Bucket) *Clock {
	t.Helper()
	var k BookRequest
	must(t, b.Book(ctx, &k))
	return &k.Clock
}

// reserve books n calls and returns their tickets, and when they are due.
func reserve(t *testing.T, b *Bucket, n int) (tickets []string, due []time.Time) {
	t.Helper()
	k := BookRequest{Wait: time.Hour, Horizon: time.Hour}
	for range n {
		k.Costs = append(k.Costs, Cost{1})
	}
	must(t, b.Book(ctx, &k))
	fatalIf(t, len(k.Tickets) != n, "%v", len(k.Tickets))
	for _, p := range k.Tickets {
		tickets, due = append(tickets, p.String()), append(due, k.Clock.Due(p))
	}
	return tickets, due
}

// The text of a ticket is due when the ticket is, through delays and holds.
func TestTicket_TextSaysWhenItIsDue(t *testing.T) {
	for _, limits := range [][]Limit{
		{{Capacity: 2, LeakRate: 1}}, {PerSecond(2), Window(5, time.Minute)}, {Window(3, time.Minute)}, {Daily(100, time.UTC)},
	} {
		bothWays(t, func(t *testing.T, b *Bucket) {
			time.Sleep(time.Minute) // no call leaves in the first second of a day
			tickets, due := reserve(t, b, 10)
			k := clockOf(t, b)
			for i, m := range tickets {
				if at, ok := k.DueText(m); !ok || at.Sub(due[i]).Abs() > time.Microsecond {
					t.Errorf("%v: reservation %d is due %v, %v, want %v", limits, i, at, ok, due[i])
				}
			}
			hold := b.Hold
			if _, window := limits[len(limits)-1].Each(); window > 0 { // whose reservations a hold makes void
				hold = b.Delay
			}
			must(t, hold(ctx, 10*time.Second))
			k = clockOf(t, b) // those that were due before the hold are not due in it
			for i, m := range tickets {
				if at, ok := k.DueText(m); !ok || at.Before(time.Now().Add(10*time.Second)) || at.After(due[i].Add(10*time.Second+time.Microsecond)) {
					t.Errorf("%v, held: reservation %d is due in %v, %v", limits, i, time.Until(at), ok)
				}
			}
			time.Sleep(15 * time.Second)
			k = clockOf(t, b)
			if at, ok := k.DueText(tickets[0]); !ok || (time.Since(at)-5*time.Second).Abs() > time.Millisecond {
				t.Errorf("%v, late: the first reservation was due %v ago, %v", limits, time.Since(at), ok)
			}
		}, limits...)
	}
}

// The text of a ticket is void after Resume or other limits.
func TestTicket_TextIsVoidAfterResumeOrNewLimits(t *testing.T) {
	for name, change := range map[string]func(b *Bucket) error{
		"resumed":    func(b *Bucket) error { return b.Resume(ctx) },
		"new limits": func(b *Bucket) error { return b.SetLimits(ctx, Limit{Capacity: 1, LeakRate: 5}) },
	} {
		bothWays(t, func(t *testing.T, b *Bucket) {
			tickets, _ := reserve(t, b, 20)
			must(t, change(b))
			k := clockOf(t, b)
			for i, m := range tickets {
				at, ok := k.DueText(m)
				fatalIf(t, ok, "%s: reservation %d is due %v", name, i, at)
			}
			tickets, due := reserve(t, b, 3)
			at, ok := clockOf(t, b).DueText(tickets[2])
			errorIf(t, !ok || !at.Equal(due[2]), "%s: a new reservation is due %v, %v, want %v", name, at, ok, due[2])
		}, Limit{Capacity: 1, LeakRate: 2})
	}
}

// A text that is not of a ticket of this bucket is not due.
func TestTicket_ForgedOrForeignTextIsNotDue(t *testing.T) {
	bothWays(t, func(t *testing.T, b *Bucket) {
		tickets, _ := reserve(t, b, 10)
		time.Sleep(time.Second)
		k := clockOf(t, b)
		c := &k.state
		bad := []string{
			"", " ", "1-", "1-::", "1-0:0:0", "2" + tickets[0][1:], tickets[0] + ":", tickets[0] + " ", strings.ToUpper(tickets[0]) + "X", "+" + tickets[0],
			strings.Repeat("1", 1<<20), "1-" + strings.Repeat("z", 40), strings.Replace(tickets[0], ":", ":+", 1), strings.Replace(tickets[0], ":", ":0", 1),
			ticketOf(int64(c.Born)+1, k.number, 0), ticketOf(int64(c.Born), k.number+1, 0), ticketOf(int64(c.Born), k.number-2, 0),
			ticketOf(int64(c.Born), k.number, int64(c.Dial()+c.Last)+int64(2*time.Millisecond)),
			ticketOf(int64(c.Born), k.number, math.MaxInt64), ticketOf(math.MinInt64, math.MinInt64, math.MinInt64),
		}
		for _, m := range bad {
			at, ok := k.DueText(m)
			errorIf(t, ok, "%.60q is due %v", m, at)
		}
		_, ok := k.DueText(tickets[9])
		errorIf(t, !ok, "the last reservation is not known")
		if at, ok := k.DueText(ticketOf(int64(c.Born), k.number, math.MinInt64)); ok && at.After(time.Now()) {
			t.Errorf("a reservation of long ago is due in %v", time.Until(at))
		}
	}, Limit{Capacity: 1, LeakRate: 2})
	equal(t, (Ticket{}).String(), "", "the zero ticket")
	_, ok := new(Clock).DueText(ticketOf(0, 0, 0))
	errorIf(t, ok, "the zero Clock knows a reservation")
}

// No text is due later than the last reservation.
func FuzzTicket_TextIsDueByTheLast(f *testing.F) {
	b := Must(NewBucket("k", Limit{Capacity: 1, LeakRate: 1}))
	k := BookRequest{Costs: []Cost{{1}, {1}}, Wait: time.Hour, Horizon: time.Hour}
	must(f, b.Book(ctx, &k))
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
			errorIf(t, ok && at.After(last.Add(moved)), "%q is due %v after the last reservation", m, at.Sub(last))
			if born, version, place, _ := readTicket(m); ok && m != ticketOf(born, version, place) {
				t.Errorf("%q has another form", m)
			}
		}
		at, ok := k.Clock.DueText(good)
		errorIf(t, !ok || !at.Equal(last), "the reservation itself is due %v, %v", at, ok)
	})
}

func ticketOf(born, version, place int64) string {
	return fmt.Sprintf(ticketText, born, version, place)
}
