package jobs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	contract "github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

func TestOutage_UnavailableStoreFailsNoJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &trip{Memory: contract.NewMemory()}
		l := New(shared(t, store, "api", perSecond...), Config{})
		ticket := book(t, l, 5)[4].Ticket
		store.fails(fmt.Errorf("%w: down", contract.ErrUnavailable))
		var first time.Duration
		differ := false
		for i := range 20 {
			later := sentBack(t, l, ticket, one)
			var e *outbound.StoreError
			if later.In < time.Second || later.In > 5*time.Second || later.Ticket != ticket || !errors.As(later.Err, &e) || errors.Is(later, outbound.ErrThrottled) {
				t.Fatalf("sent back: %+v", later)
			}
			differ = differ || i > 0 && later.In != first
			first = later.In
		}
		if !differ {
			t.Error("all jobs come back together")
		}
		if _, err := l.Book(bg, one); !errors.Is(err, contract.ErrUnavailable) {
			t.Errorf("Book: %v", err)
		}
		store.fails(nil)
		time.Sleep(4 * time.Second)
		admitted(t, l, ticket, one)
	})
}

func TestScheduler_CostAboveCapacityIsPermanent(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		l := line()
		for _, c := range []outbound.Cost{{2}, {-1}, {math.NaN()}, {math.Inf(1)}, {0, 1}} {
			var bad *outbound.CostError
			if _, err := l.Acquire(bg, c); !errors.As(err, &bad) {
				t.Errorf("%v: %v", c, err)
			} else if _, ok := AsLater(err); ok {
				t.Errorf("%v is to come back", c)
			}
			if _, err := l.Book(bg, one, one, c, one); !errors.As(err, &bad) {
				t.Errorf("Book with %v: %v", c, err)
			}
			ticket := book(t, l, 1)[0].Ticket
			if _, err := l.Acquire(WithTicket(bg, ticket), c); !errors.As(err, &bad) {
				t.Errorf("%v with a ticket: %v", c, err)
			}
			time.Sleep(time.Second) // that place passes
		}
		if in := time.Until(book(t, l, 1)[0].At); in > 0 { // Book has given its own back
			t.Errorf("the next place is in %v", in)
		}
	})
}

func TestShutdown_ReschedulesJobs(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		l := line()
		places := book(t, l, 2)
		admitted(t, l, places[0].Ticket, one)
		ctx, cancel := context.WithCancel(WithTicket(bg, places[1].Ticket))
		time.AfterFunc(500*time.Millisecond, cancel)
		var later *Later
		if _, err := l.Acquire(ctx, one); !errors.As(err, &later) || later.In != 0 || later.Ticket != places[1].Ticket || !errors.Is(err, context.Canceled) || errors.Is(err, outbound.ErrThrottled) {
			t.Errorf("its ctx ends while it waits: %v", err)
		}
		if _, err := l.Acquire(ctx, one); !errors.As(err, &later) || later.In != 0 || later.Ticket != places[1].Ticket || !errors.Is(err, context.Canceled) {
			t.Errorf("its ctx has ended: %v", err)
		}
		time.AfterFunc(100*time.Millisecond, func() { l.Queue().Close() })
		for range 2 {
			if later := sentBack(t, l, places[1].Ticket, one); later.In <= 0 || later.Ticket != places[1].Ticket || !errors.Is(later, queue.ErrClosed) {
				t.Errorf("the queue is closed: %+v", later)
			}
		}
		time.Sleep(time.Second)
		admitted(t, line(), places[1].Ticket, one) // by another process
	})
}

func TestScheduler_InFlightReschedulesForAPoll(t *testing.T) {
	bothWays(t, Config{Poll: 3 * time.Second}, []outbound.Limit{{Capacity: 1, LeakRate: 1}, outbound.InFlight(1)}, func(t *testing.T, line func() *Scheduler) {
		l := line()
		p, err := l.Acquire(bg, one)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		later := sentBack(t, l, "", one)
		if waited := time.Since(begin); later.In != 3*time.Second || later.Ticket == "" || !near(waited, 5*time.Second) {
			t.Errorf("after %v it is sent back: %+v", waited, later)
		}
		p.Done()
		time.Sleep(later.In)
		admitted(t, l, later.Ticket, one)
	})
}

func TestScheduler_BeyondAheadReschedules(t *testing.T) {
	bothWays(t, Config{Ahead: 20 * time.Second}, perSecond, func(t *testing.T, line func() *Scheduler) {
		s, begin := &punctual{t: t}, time.Now()
		for i, p := range book(t, line(), 50) {
			if (p.Ticket == "") != (i > 20) || time.Until(p.At) > 20*time.Second {
				t.Errorf("place %d: %q in %v", i, p.Ticket, time.Until(p.At))
			}
			s.start(fmt.Sprint(i), line(), p.Ticket, one)
		}
		later := sentBack(t, line(), "", one)
		if !errors.Is(later, queue.ErrFull) || !errors.Is(later, outbound.ErrThrottled) || later.Ticket != "" || later.In < 9*time.Second {
			t.Errorf("one more: %+v", later)
		}
		if text := later.Error(); strings.Contains(text, "queue") || !strings.Contains(text, "Config.Ahead") {
			t.Errorf("%q does not tell what is full", text)
		}
		s.jobs.Wait()
		if took := time.Since(begin); took > 50*time.Second || s.most() > 6 {
			t.Errorf("it takes %v and up to %d runs", took, s.most())
		}
		s.check(perSecond[0])
	})
}

// A job that came a lead early to a queue in which it may not wait for a lead would be refused
// until its turn is near.
func TestConfig_LeadIsAtMostTheWait(t *testing.T) {
	for _, wait := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, time.Second} {
		bothWays(t, Config{Queue: queue.Config{MaxWait: wait}}, []outbound.Limit{{Capacity: 1, LeakRate: 10}}, func(t *testing.T, line func() *Scheduler) {
			l, s, begin := line(), &punctual{t: t}, time.Now()
			for i := range 200 {
				s.start(fmt.Sprint(i), l, "", one)
			}
			s.jobs.Wait()
			if took := time.Since(begin); took > 21*time.Second || s.most() > 3 {
				t.Errorf("with a MaxWait of %v it takes %v and up to %d runs", wait, took, s.most())
			}
		})
	}
}

func TestConfig_InvalidIsAnError(t *testing.T) {
	for name, l := range map[string]*Scheduler{
		"nil": nil, "no bucket": New(nil, Config{}), "only InFlight": New(own(t, outbound.InFlight(1)), Config{}),
		"Poll": New(own(t, perSecond...), Config{Poll: -1}), "Lead": New(own(t, perSecond...), Config{Lead: -1}), "Early": New(own(t, perSecond...), Config{Early: math.MaxInt64}),
		"Ahead": New(own(t, perSecond...), Config{Ahead: math.MinInt64}), "Queue": New(own(t, perSecond...), Config{Queue: queue.Config{MaxLen: -1}}),
	} {
		_, err := l.Acquire(bg, one)
		_, booking := l.Book(bg, one)
		for _, err := range []error{err, booking, l.SetLimits(bg, perSecond...), l.Resume(bg)} {
			if _, ok := AsLater(err); ok || !errors.Is(err, outbound.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !l.Idle() || (l.Queue() == nil) != (l == nil) {
			t.Errorf("%s is not idle", name)
		}
	}
}

// Nothing is booked in the next period. Jobs that need it come when it begins, in the order in
// which they were told, spread over a poll interval, and so do those that are booked before.
func TestScheduler_NextPeriodReschedulesToItsBegin(t *testing.T) {
	bothWays(t, Config{}, []outbound.Limit{outbound.Hourly(10)}, func(t *testing.T, line func() *Scheduler) {
		l, last := line(), time.Hour // it is midnight
		book(t, l, 10)
		ended := func(in time.Duration, ticket string) {
			t.Helper()
			if in <= last || in > time.Hour+time.Second+l.config.Poll || ticket != "" {
				t.Errorf("a job comes after %v with %q, the one before after %v", in, ticket, last)
			}
			last = in
		}
		for range 50 {
			later := sentBack(t, l, "", one)
			ended(later.In, later.Ticket)
		}
		for _, r := range book(t, l, 50) {
			ended(time.Until(r.At), r.Ticket)
		}
	})
}
