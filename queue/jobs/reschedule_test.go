package jobs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// While the store is unavailable jobs keep their tickets, and do not come back together.
func TestOutage_UnavailableStoreFailsNoJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &remote{Store: store.NewMemory()}
		s := New(shared(m, "api", perSecond...), Config{})
		ticket := book(t, s, 5)[4].Ticket
		m.set(unavailable)
		waits := map[time.Duration]bool{}
		for range 20 {
			later := rescheduled(t, s, ticket, one)
			if later.In < time.Second || later.In > 5*time.Second || later.Ticket != ticket || !errors.As(later.Err, new(*outbound.StoreError)) || errors.Is(later, outbound.ErrThrottled) {
				t.Fatalf("rescheduled: %+v", later)
			}
			waits[later.In] = true
		}
		if len(waits) < 2 {
			t.Error("all jobs come back together")
		}
		if _, err := s.Book(bg, one); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Book: %v", err)
		}
		m.set(nil)
		time.Sleep(4 * time.Second)
		admitted(t, s, ticket, one)
	})
}

// silent is a store that answers nothing, and no error.
type silent struct{ store.Store }

func (silent) Update(context.Context, string, *store.Op) (store.Reply, error) {
	return store.Reply{State: store.New(0, 1)}, nil
}

// A store that books nothing and refuses nothing counts as unavailable.
func TestOutage_SilentStoreFailsNoJob(t *testing.T) {
	s := New(shared(silent{}, "api", perSecond...), Config{})
	var broken *outbound.StoreError
	if later := rescheduled(t, s, "", one); !errors.As(later.Err, &broken) || later.In < time.Second {
		t.Errorf("it is rescheduled: %+v", later)
	}
	if _, err := s.Book(bg, one); !errors.As(err, &broken) {
		t.Errorf("Book: %v", err)
	}
}

// A job that finds no capacity keeps its ticket, and comes back no later than its ctx ends. A late one cannot book again
// while the reservations are unavailable, and the store may hang when the reservations should be held.
func TestOutage_JobWithoutCapacityKeepsItsTicket(t *testing.T) {
	for late, fails := range map[time.Duration]func(context.Context, string, *store.Op) error{
		time.Minute: func(ctx context.Context, key string, op *store.Op) error {
			if len(op.Costs) > 0 && strings.Contains(key, "reserved") {
				return unavailable(ctx, key, op)
			}
			return nil
		},
		0: func(ctx context.Context, _ string, op *store.Op) error {
			if len(op.Reports) > 0 {
				return hang(ctx)
			}
			return nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &remote{Store: store.NewMemory()}
			s := New(shared(m, "api", perSecond...), Config{})
			ticket := book(t, s, 1)[0].Ticket
			time.Sleep(late)
			must(t, s.bucket.Hold(bg, time.Minute))
			m.set(fails)
			ctx, cancel := context.WithTimeout(WithTicket(bg, ticket), 3*time.Second)
			defer cancel()
			begin := time.Now()
			_, err := s.Acquire(ctx, one)
			later, ok := AsLater(err)
			if !ok || later.Ticket != ticket || errors.Is(err, store.ErrUnavailable) != (late > 0) || near(time.Since(begin), 3*time.Second) != (late == 0) {
				t.Errorf("%v late, after %v it has %v", late, time.Since(begin), err)
			}
		})
	}
}

// A store that hangs keeps Book only for a while after its ctx: reservations that do not return pass
// unused.
func TestOutage_HungStoreKeepsNoBook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &remote{Store: store.NewMemory()}
		m.set(func(ctx context.Context, _ string, _ *store.Op) error {
			if m.trips.Load() > 3 {
				return hang(ctx)
			}
			return nil
		})
		s := New(shared(m, "api", perSecond...), Config{})
		ctx, cancel := context.WithTimeout(bg, 3*time.Second)
		defer cancel()
		begin := time.Now()
		all, err := s.Book(ctx, slices.Repeat([]outbound.Cost{one}, mostBooked+1)...)
		if took := time.Since(begin); all != nil || !errors.Is(err, context.DeadlineExceeded) || took > 10*time.Second || m.trips.Load() != 5 {
			t.Errorf("after %v and %d requests it has %d reservations, %v", took, m.trips.Load(), len(all), err)
		}
	})
}

// After an error reservations return as they are booked: the latest first, and 4,096 in a request.
func TestBook_ReturnsReservationsAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var back []int
		m := &remote{Store: store.NewMemory()}
		m.set(func(_ context.Context, _ string, op *store.Op) error {
			if len(op.Unused) > 0 {
				back = append(back, len(op.Unused))
			}
			return nil
		})
		s := New(shared(m, "api", outbound.Limit{Capacity: 1, LeakRate: 1000}), Config{})
		costs := append(slices.Repeat([]outbound.Cost{one}, 2*mostBooked+5), outbound.Cost{2})
		if _, err := s.Book(bg, costs...); !errors.Is(err, outbound.ErrTooLarge) {
			t.Error(err)
		}
		if !slices.Equal(back, []int{mostBooked, mostBooked, 5}) {
			t.Errorf("%d return", back)
		}
		if at := book(t, s, 1)[0].At; time.Until(at) > 0 {
			t.Errorf("the next reservation is in %v", time.Until(at))
		}
	})
}

// While the store is unavailable a fallback gives each process a share of the reservations and of the
// bucket, and the tickets of the store are void. Limits that were set just before are those of the
// bucket, and the reservations follow later.
func TestFallback_SchedulerUsesItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, limit := &remote{Store: store.NewMemory()}, outbound.Limit{Capacity: 1, LeakRate: 2}
		scheduler := New(shared(&fallback.Store{Store: m, Share: 0.5}, "api", limit), Config{})
		s, after := &punctual{t: t}, &punctual{t: t}
		all := book(t, scheduler, 10)
		m.set(unavailable)
		s.startAll(all, scheduler)
		if took := s.end(20*time.Second, 10); took < 9*time.Second || s.sum() > 40 {
			t.Errorf("they take %v, and %d runs", took, s.sum())
		}
		m.set(nil)
		time.Sleep(time.Minute)
		s.start("back", scheduler, all[0].Ticket, one)
		s.jobs.Wait()
		s.check(limit)

		limit.LeakRate = 4
		must(t, scheduler.bucket.SetLimits(bg, limit))
		m.set(unavailable)
		time.AfterFunc(10*time.Minute, func() { m.set(nil) })
		after.startAll(make([]Run, 10), scheduler)
		after.end(20*time.Second, 4)
		time.Sleep(20 * time.Minute)
		wantRate(t, scheduler, 4)
		after.check(limit)
	})
}

// The error of a cost that no limit can admit is no Later, with or without a ticket, and leaves nothing
// booked.
func TestScheduler_CostAboveCapacityIsPermanent(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		s := scheduler()
		for _, c := range []outbound.Cost{{2}, {-1}, {math.NaN()}, {math.Inf(1)}, {0, 1}} {
			var bad *outbound.CostError
			if _, err := s.Acquire(bg, c); !errors.As(err, &bad) {
				t.Errorf("%v: %v", c, err)
			} else if _, ok := AsLater(err); ok {
				t.Errorf("%v is to come back", c)
			}
			if _, err := s.Book(bg, one, one, c, one); !errors.As(err, &bad) {
				t.Errorf("Book with %v: %v", c, err)
			}
			ticket := book(t, s, 1)[0].Ticket
			if _, err := s.Acquire(WithTicket(bg, ticket), c); !errors.As(err, &bad) {
				t.Errorf("%v with a ticket: %v", c, err)
			}
			time.Sleep(time.Second) // that reservation passes
		}
		if in := time.Until(book(t, s, 1)[0].At); in > 0 { // Book has returned its own
			t.Errorf("the next reservation is in %v", in)
		}
	})
}

// A job whose ctx ends, or whose queue is closed, keeps its ticket: another process runs it.
func TestShutdown_ReschedulesJobs(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		s := scheduler()
		all := book(t, s, 2)
		ticket := all[1].Ticket
		admitted(t, s, all[0].Ticket, one)
		ctx, cancel := context.WithCancel(WithTicket(bg, ticket))
		time.AfterFunc(500*time.Millisecond, cancel)
		for range 2 { // the ctx ends while the job waits, and has ended
			_, err := s.Acquire(ctx, one)
			if later, ok := AsLater(err); !ok || later.In != 0 || later.Ticket != ticket || !errors.Is(err, context.Canceled) || errors.Is(err, outbound.ErrThrottled) {
				t.Errorf("its ctx ends: %v", err)
			}
		}
		time.AfterFunc(100*time.Millisecond, func() { s.Queue().Close() })
		for range 2 {
			if later := rescheduled(t, s, ticket, one); later.In <= 0 || later.Ticket != ticket || !errors.Is(later, queue.ErrClosed) {
				t.Errorf("the queue is closed: %+v", later)
			}
		}
		time.Sleep(time.Second)
		admitted(t, scheduler(), ticket, one) // by another process
	})
}

// A job that waits too long for a call in flight comes back after a poll interval, with its ticket.
func TestScheduler_InFlightReschedulesForAPoll(t *testing.T) {
	limits := []outbound.Limit{perSecond[0], outbound.InFlight(1)}
	bothWays(t, Config{PollInterval: 3 * time.Second}, limits, func(t *testing.T, scheduler func() *Scheduler) {
		s := scheduler()
		p, err := s.Acquire(bg, one)
		must(t, err)
		begin := time.Now()
		later := rescheduled(t, s, "", one)
		if waited := time.Since(begin); later.In != 3*time.Second || later.Ticket == "" || !near(waited, 5*time.Second) {
			t.Errorf("after %v it is rescheduled: %+v", waited, later)
		}
		p.Done()
		time.Sleep(later.In)
		admitted(t, s, later.Ticket, one)
	})
}

// A job whose reservation would be beyond Config.Ahead has no ticket, and comes back before that.
func TestScheduler_BeyondAheadReschedules(t *testing.T) {
	bothWays(t, Config{Ahead: 20 * time.Second}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		s := &punctual{t: t}
		for i, r := range book(t, scheduler(), 50) {
			if (r.Ticket == "") != (i > 20) || time.Until(r.At) > 20*time.Second {
				t.Errorf("reservation %d: %q in %v", i, r.Ticket, time.Until(r.At))
			}
			s.start(fmt.Sprint(i), scheduler(), r.Ticket, one)
		}
		later := rescheduled(t, scheduler(), "", one)
		if !errors.Is(later, queue.ErrFull) || !errors.Is(later, outbound.ErrThrottled) || later.Ticket != "" || later.In < 9*time.Second {
			t.Errorf("one more: %+v", later)
		}
		if text := later.Error(); strings.Contains(text, "queue") || !strings.Contains(text, "Config.Ahead") {
			t.Errorf("%q does not say what is full", text)
		}
		s.end(50*time.Second, 6)
		s.check(perSecond[0])
	})
}

// Nothing is booked in the next period. Jobs that need it come when it begins, in the order of their
// Laters, spread over a poll interval, and so do those that are booked before.
func TestScheduler_NextPeriodReschedulesToItsBegin(t *testing.T) {
	bothWays(t, Config{}, []outbound.Limit{outbound.Hourly(10)}, func(t *testing.T, scheduler func() *Scheduler) {
		s, last := scheduler(), time.Hour // it is midnight
		book(t, s, 10)
		ended := func(in time.Duration, ticket string) {
			t.Helper()
			if in <= last || in > time.Hour+time.Second+s.config.PollInterval || ticket != "" {
				t.Errorf("a job comes after %v with %q, the one before after %v", in, ticket, last)
			}
			last = in
		}
		for range 50 {
			later := rescheduled(t, s, "", one)
			ended(later.In, later.Ticket)
		}
		for _, r := range book(t, s, 50) {
			ended(time.Until(r.At), r.Ticket)
		}
	})
}

// A job that came a Lead early to a queue in which it may not wait for a Lead would be refused
// until its reservation is near. So the Lead is at most the MaxWait.
func TestConfig_LeadIsAtMostTheWait(t *testing.T) {
	for _, wait := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, time.Second} {
		bothWays(t, Config{Queue: queue.Config{MaxWait: wait}}, []outbound.Limit{{Capacity: 1, LeakRate: 10}}, func(t *testing.T, scheduler func() *Scheduler) {
			s := &punctual{t: t}
			s.startAll(make([]Run, 200), scheduler())
			s.end(21*time.Second, 3)
		})
	}
}

// An invalid Scheduler returns an error that is ErrInvalid and no Later.
func TestConfig_InvalidIsAnError(t *testing.T) {
	with := func(c Config) *Scheduler { return New(own(perSecond...), c) }
	for name, s := range map[string]*Scheduler{
		"nil": nil, "no bucket": New(nil, Config{}), "only InFlight": New(own(outbound.InFlight(1)), Config{}),
		"Poll": with(Config{PollInterval: -1}), "Lead": with(Config{HeadStart: -1}), "Early": with(Config{Early: math.MaxInt64}),
		"Ahead": with(Config{Ahead: math.MinInt64}), "Queue": with(Config{Queue: queue.Config{MaxLen: -1}}),
	} {
		_, err := s.Acquire(bg, one)
		_, booking := s.Book(bg, one)
		for _, err := range []error{err, booking, s.SetLimits(bg, perSecond...), s.Resume(bg)} {
			if _, ok := AsLater(err); ok || !errors.Is(err, outbound.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !s.Idle() || (s.Queue() == nil) != (s == nil) {
			t.Errorf("%s is not idle", name)
		}
	}
}
