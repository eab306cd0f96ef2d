package outbound

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// What a late call costs beyond its cost is added to it, and a second report of the same call adds nothing.
func TestSent_SettleAddsWhatACallCostsMore(t *testing.T) {
	for _, c := range []struct {
		times      int
		used, want float64
	}{{1, 100, 100}, {1, 500, 500}, {1, 40, 100}, {2, 100, 100}, {2, 500, 500}} {
		for _, queued := range []bool{false, true} {
			bothWays(t, func(t *testing.T, b *Bucket) {
				p := admit(t, b, 1, 100)
				time.Sleep(60 * time.Millisecond)
				if queued {
					defer b.Waiting(func() {})()
				}
				for range c.times {
					p.Answered(Answer{Kind: AnswerSent, Wait: 60 * time.Millisecond})
				}
				p.Settle(Cost{1, c.used})
				p.Done()
				must(t, b.Book(ctx, new(BookRequest))) // brings what was postponed
				if l := states(t, b); l[0].Level != 1 || l[1].Level != c.want {
					t.Errorf("%d reports, queued %v, used %v: levels %v and %v; want 1 and %v", c.times, queued, c.used, l[0].Level, l[1].Level, c.want)
				}
			}, Window(10, time.Minute), Window(10000, time.Minute).Of(1, "tokens"))
		}
	}
}

// No other call gets the units of a late call while these move to the time at which it was sent.
func TestSent_UnitsMoveInOneStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := store.NewMemory()
		other := Must(NewSharedBucket(memory, "key", Window(1, time.Minute)))
		b := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			defer func() {
				if _, err := other.Acquire(ctx, Cost{1}); err == nil && len(op.Reports) > 0 {
					t.Error("a call was admitted in the window of a late one")
				}
			}()
			return memory.Update(ctx, key, op)
		}), "key", Window(1, time.Minute)))
		p := mustAcquire(t, b)
		time.Sleep(60 * time.Millisecond)
		p.Answered(Answer{Kind: AnswerSent, Wait: 60 * time.Millisecond})
	})
}

// A reservation from before a late call was reported is void: it did not know of the call.
func TestSent_VoidsReservations(t *testing.T) {
	bothWays(t, func(t *testing.T, b *Bucket) {
		p, k := admit(t, b, 1), BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}
		must(t, b.Book(ctx, &k))
		ticket := k.Tickets[0]
		time.Sleep(60 * time.Millisecond)
		p.Answered(Answer{Kind: AnswerSent, Wait: 60 * time.Millisecond})
		for _, unused := range [][]Ticket{nil, {ticket}} { // then another one holds
			k.Costs, k.Unused = k.Costs[:len(unused)], unused
			if must(t, b.Book(ctx, &k)); k.Clock.Holds(ticket) {
				t.Error("the reservation holds")
			}
		}
		if due := k.Clock.Due(k.Tickets[0]); !k.Clock.Holds(k.Tickets[0]) || time.Until(due) < time.Second {
			t.Errorf("the next one is due in %v", time.Until(due))
		}
	}, Window(1, time.Second))
}

// Late calls count from when they are sent in one burst, of an hour at most, and not again for 50 times as long.
func TestSent_OneBurstCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, b, other := time.Now().Add(time.Second), Must(NewBucket("k", Window(100, time.Minute))), Must(NewBucket("other", Window(100, time.Minute)))
		for _, c := range []struct {
			at, late time.Duration
			counts   bool
		}{
			{0, 100 * time.Millisecond, true}, {100 * time.Millisecond, 100 * time.Millisecond, true}, {120 * time.Millisecond, time.Second, false},
			{4999 * time.Millisecond, 100 * time.Millisecond, false}, {5 * time.Second, 3 * time.Hour, true},
			{time.Hour, time.Second, true}, {time.Hour + 6*time.Second, time.Second, false}, {50 * time.Hour, time.Second, false}, {50*time.Hour + 5*time.Second, time.Second, true},
		} {
			p := admit(t, b, 1)
			time.Sleep(time.Until(begin.Add(c.at)))
			p.Answered(Answer{Kind: AnswerSent, Wait: c.late})
			admit(t, other, 1)
			if is, now := states(t, b)[0].EmptyIn, states(t, other)[0].EmptyIn; (is > now-5*time.Millisecond) != c.counts {
				t.Errorf("sent %v late, %v after the first: counts for %v, a call of now for %v", c.late, c.at, is, now)
			}
		}
	})
}
