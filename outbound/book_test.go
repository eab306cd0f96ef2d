package outbound

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Reservations that return in one step are undone from the latest to the first, in whatever order they are named. Of
// several for one time, the one that was booked last is undone first.
func TestBook_ReturnedTogetherIsAsIfNeverBooked(t *testing.T) {
	for name, order := range map[string]func(tickets []Ticket){
		"as booked": func([]Ticket) {},
		"reversed":  slices.Reverse[[]Ticket],
		"shuffled": func(tickets []Ticket) {
			rand.Shuffle(len(tickets), func(i, j int) { tickets[i], tickets[j] = tickets[j], tickets[i] })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", Limit{Capacity: 5, LeakRate: 128}, Limit{Capacity: 3, LeakRate: 128, Unit: 1, Name: "rows"}))
			costs := append([]Cost{{1, 1}, {1, 1}}, slices.Repeat([]Cost{{1}}, 98)...) // five of them for one time
			costs[99] = Cost{0.5}
			for range 3 {
				k := BookRequest{Costs: costs, Wait: time.Hour, Horizon: time.Hour}
				err := b.Book(ctx, &k)
				fatalIf(t, err != nil || len(k.Tickets) != 100, "%v %v", len(k.Tickets), err)
				order(k.Tickets)
				must(t, b.Book(ctx, &BookRequest{Unused: append(k.Tickets, Ticket{})})) // the last one is no reservation
			}
			for i := range 5 {
				errorIs(t, errOf(b.Acquire(ctx, Cost{1})), nil, "%s, call %d", name, i)
			}
		})
	}
}

// A hold after a reservation has returned is the same as if it had not been booked.
func TestBook_ReturnedReservationChangesNoHold(t *testing.T) {
	for _, before := range []time.Duration{-1, 0, 50 * time.Millisecond, 150 * time.Millisecond} {
		for _, kept := range []time.Duration{0, 20 * time.Millisecond} {
			wait := map[bool]time.Duration{} // without the reservation, of a bucket that is shared or not
			for _, booked := range []bool{false, true} {
				bothWays(t, func(t *testing.T, b *Bucket) {
					if before >= 0 {
						admit(t, b, 1)
						time.Sleep(before + 1)
					}
					k := BookRequest{Costs: []Cost{{1}}}
					if booked {
						must(t, b.Book(ctx, &k))
					}
					time.Sleep(kept + 1)
					must(t, b.Book(ctx, &BookRequest{Unused: k.Tickets}))
					must(t, b.Hold(ctx, 10*time.Second))
					_, due := reserve(t, b, 2)
					got := time.Until(due[1])
					if !booked {
						wait[b.Shared()] = got
					} else if d := got - wait[b.Shared()]; d.Abs() > 2 {
						t.Errorf("a call %v before, kept for %v: the second leaves in %v, want %v", before, kept, got, wait[b.Shared()])
					}
				}, Limit{Capacity: 10, LeakRate: 1})
			}
		}
	}
}

// A settle that waits for the next booking of a queue is not lost when the queue stops waiting.
func TestSettle_OutlivesTheQueueThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, limit := store.NewMemory(), Limit{Capacity: 10, LeakRate: 0.001}
		b := Must(NewSharedBucket(m, "k", limit))
		p := admit(t, b, 10)
		stop := b.Waiting(func() {})
		p.Settle(Cost{4})
		stop()
		synctest.Wait()
		s, err := Must(NewSharedBucket(m, "k", limit)).State(ctx)
		errorIf(t, err != nil || s.Level > 4, "level %v, %v, want 4", s.Level, err)
	})
}

// A booking that fails for its cost still returns its tickets.
func TestBook_InvalidCostLosesNoReturnedTicket(t *testing.T) {
	b := Must(NewBucket("k", Limit{Capacity: 5, LeakRate: 0.001}))
	k := book(t, b, BookRequest{Costs: []Cost{{5}}, Wait: time.Hour})
	err := b.Book(ctx, &BookRequest{Unused: k.Tickets, Costs: []Cost{{math.NaN()}}})
	s, _ := b.State(ctx)
	errorIf(t, !errors.Is(err, ErrInvalid) || s.Level != 0, "%v, level %v", err, s.Level)
}

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

// A ticket that was due within a second stays reserved under other limits, and its text due, by a clock that follows the
// one before.
func TestTicket_NextSecondOutlivesNewLimits(t *testing.T) {
	bothWays(t, func(t *testing.T, b *Bucket) {
		k := book(t, b, BookRequest{Costs: []Cost{{1}, {1}, {1}, {1}}, Wait: time.Hour, Horizon: time.Hour})
		must(t, b.SetLimits(ctx, Limit{Capacity: 1, LeakRate: 5}))
		next := book(t, b, BookRequest{Clock: k.Clock})
		for i, ticket := range k.Tickets {
			at, ok := next.Clock.DueText(ticket.String())
			errorIf(t, ok != (i < 3) || ok && time.Until(at) != time.Duration(i)*400*time.Millisecond, "ticket %d: due %v, in %v", i, ok, time.Until(at))
		}
	}, Limit{Capacity: 1, LeakRate: 2.5})
	bothWays(t, func(t *testing.T, b *Bucket) {
		k := book(t, b, BookRequest{Costs: []Cost{{1}, {1}, {1}, {1}, {1}, {1}, {1}}, Wait: time.Hour, Horizon: time.Hour})
		time.Sleep(time.Second)
		read := book(t, b, BookRequest{Clock: k.Clock})
		must(t, b.SetLimits(ctx, Limit{Capacity: 1, LeakRate: 5}))
		next := book(t, b, BookRequest{Clock: read.Clock})
		for i, ticket := range k.Tickets { // the last one is due in 1.4 s
			errorIf(t, next.Clock.Holds(ticket) != (i < 6), "ticket %d is reserved: %v", i, i >= 6)
		}
	}, Limit{Capacity: 1, LeakRate: 2.5})
}

// A text that is not of a ticket of this bucket is not due.
func TestTicket_ForgedOrForeignTextIsNotDue(t *testing.T) {
	bothWays(t, func(t *testing.T, b *Bucket) {
		tickets, _ := reserve(t, b, 10)
		time.Sleep(time.Second)
		k := clockOf(t, b)
		c := &k.said.State
		_, number, _ := partsOf(tickets[0])
		bad := []string{
			"", " ", "1-", "1-::", "1-0:0:0", "2" + tickets[0][1:], tickets[0] + ":", tickets[0] + " ", strings.ToUpper(tickets[0]) + "X", "+" + tickets[0],
			strings.Repeat("1", 1<<20), "1-" + strings.Repeat("z", 40), strings.Replace(tickets[0], ":", ":+", 1), strings.Replace(tickets[0], ":", ":0", 1),
			ticketOf(int64(c.Born)+1, number, 0), ticketOf(int64(c.Born), number+1, 0), ticketOf(int64(c.Born), number-2, 0),
			ticketOf(int64(c.Born), number, int64(c.Dial()+c.Last)+int64(2*time.Millisecond)),
			ticketOf(int64(c.Born), number, math.MaxInt64), ticketOf(math.MinInt64, math.MinInt64, math.MinInt64),
		}
		for _, m := range bad {
			at, ok := k.DueText(m)
			errorIf(t, ok, "%.60q is due %v", m, at)
		}
		_, ok := k.DueText(tickets[9])
		errorIf(t, !ok, "the last reservation is not known")
		if at, ok := k.DueText(ticketOf(int64(c.Born), number, math.MinInt64)); ok && at.After(time.Now()) {
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
		born, number, place := partsOf(good)
		for _, m := range []string{m, ticketOf(born, number, place+shift)} {
			at, ok := k.Clock.DueText(m)
			errorIf(t, ok && at.After(last.Add(time.Millisecond)), "%q is due %v after the last reservation", m, at.Sub(last))
			errorIf(t, ok && m != ticketOf(partsOf(m)), "%q has another form", m)
		}
		at, ok := k.Clock.DueText(good)
		errorIf(t, !ok || !at.Equal(last), "the reservation itself is due %v, %v", at, ok)
	})
}

// ticketText is the text of a ticket: the life of its bucket, the number of the limits, and its place.
const ticketText = "1-%x:%x:%x"

func ticketOf(born, number, place int64) string {
	return fmt.Sprintf(ticketText, born, number, place)
}

func partsOf(ticket string) (born, number, place int64) {
	_, _ = fmt.Sscanf(ticket, ticketText, &born, &number, &place)
	return born, number, place
}
