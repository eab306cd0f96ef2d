package jobs

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// punctual is a job system that runs each job at the very time at which it is to come back.
type punctual struct {
	t       testing.TB
	history outboundtest.History
	jobs    sync.WaitGroup

	mu    sync.Mutex
	runs  map[string]int
	order []string
}

// start runs a job until it is admitted, in a goroutine of its own.
func (s *punctual) start(name string, l outbound.Limiter, ticket string, c outbound.Cost) {
	s.startIn(0, name, l, ticket, c)
	synctest.Wait()
}

func (s *punctual) startIn(d time.Duration, name string, l outbound.Limiter, ticket string, c outbound.Cost) {
	s.jobs.Go(func() {
		time.Sleep(d)
		for {
			s.mu.Lock()
			if s.runs == nil {
				s.runs = map[string]int{}
			}
			s.runs[name]++
			s.mu.Unlock()
			p, err := l.Acquire(WithTicket(bg, ticket), c)
			if err == nil {
				s.mu.Lock()
				s.history.Add(time.Now(), c[0])
				s.order = append(s.order, name)
				s.mu.Unlock()
				p.Done()
				return
			}
			later, ok := AsLater(err)
			if !ok {
				s.t.Errorf("%s: %v", name, err)
				return
			}
			ticket = later.Ticket
			time.Sleep(later.In)
		}
	})
}

// most returns how often the job ran that ran most often.
func (s *punctual) most() (n int) {
	for _, runs := range s.runs {
		n = max(n, runs)
	}
	return n
}

func (s *punctual) sum() (n int) {
	for _, runs := range s.runs {
		n += runs
	}
	return n
}

// check checks the law, for calls that may be late by 12 ms.
func (s *punctual) check(l outbound.Limit) {
	s.t.Helper()
	if err := s.history.Check(l.Capacity, l.LeakRate, 0.012*l.LeakRate); err != nil {
		s.t.Error(err)
	}
}

// bothWays calls f with a maker of lines, which are those of several processes with a store, or
// else those of one.
func bothWays(t *testing.T, c Config, limits []outbound.Limit, f func(t *testing.T, line func() *Scheduler)) {
	t.Run("local", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := own(t, limits...)
			f(t, func() *Scheduler { return New(b, c) })
			time.Sleep(time.Minute)
		})
	})
	t.Run("shared", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := store.NewMemory()
			f(t, func() *Scheduler { return New(shared(t, store, "api", limits...), c) })
			time.Sleep(time.Minute)
		})
	})
}

var (
	one       = outbound.Cost{1}
	perSecond = []outbound.Limit{{Capacity: 1, LeakRate: 1}}
)

// book books n places and returns them.
func book(t testing.TB, l *Scheduler, n int) []Run {
	t.Helper()
	costs := make([]outbound.Cost, n)
	for i := range costs {
		costs[i] = one
	}
	places, err := l.Book(bg, costs...)
	if err != nil || len(places) != n {
		t.Fatalf("%d places, %v", len(places), err)
	}
	return places
}

func near(a, b time.Duration) bool { return (a - b).Abs() <= 5*time.Millisecond }

func TestScheduler_EarlyJobKeepsTicket(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		places := book(t, line(), 10) // the last is due in 9 s
		ticket, begin := places[9].Ticket, time.Now()
		if in := time.Until(places[9].At); !near(in, 8*time.Second) {
			t.Errorf("the last job is to run in %v", in)
		}
		for _, at := range []time.Duration{0, 3 * time.Second, 7800 * time.Millisecond} {
			time.Sleep(at - time.Since(begin))
			later := sentBack(t, line(), ticket, one)
			if !near(later.In, 8*time.Second-at) || later.Ticket != ticket || later.Err != nil || !errors.Is(later, outbound.ErrThrottled) {
				t.Errorf("at %v it is sent back: %+v", at, later)
			}
		}
		time.Sleep(7950*time.Millisecond - time.Since(begin)) // it is not sent back for Early
		admitted(t, line(), ticket, one)
		if at := time.Since(begin); !near(at, 7950*time.Millisecond) { // nobody else has come
			t.Errorf("it is admitted after %v", at)
		}
	})
}

func TestScheduler_LateJobIsAdmittedImmediately(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		l := line()
		places := book(t, l, 200)
		time.Sleep(50 * time.Second)
		begin := time.Now()
		admitted(t, l, places[0].Ticket, one)
		if late := time.Since(begin); !near(late, 0) {
			t.Errorf("it waits for %v", late)
		}
		if s, err := l.bucket.Reservations().State(bg); err != nil || s.HeldFor != 0 {
			t.Errorf("the desk: %+v, %v", s, err)
		}
	})
}

// A place whose job does not come costs a call's time at most, and none if others wait.
func TestScheduler_LostJobDelaysNoOther(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		s := &punctual{t: t}
		begin := time.Now()
		for i, p := range book(t, line(), 40) {
			if i%4 != 1 { // three in four come
				s.start(fmt.Sprint(i), line(), p.Ticket, one)
			}
		}
		s.jobs.Wait()
		if took := time.Since(begin); took > 39*time.Second+5*time.Millisecond {
			t.Errorf("they take %v", took)
		}
		s.check(perSecond[0])
	})
}

// Job systems deliver a job twice now and then, and tickets can be copied.
func TestScheduler_JobDeliveredTwiceIsChargedTwice(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		s := &punctual{t: t}
		places := book(t, line(), 20)
		for i, p := range places {
			for twin := range 2 {
				s.start(fmt.Sprint(i, twin), line(), p.Ticket, one)
			}
		}
		for i := range 10 { // forged: the first place again and again
			s.start(fmt.Sprint("forged", i), line(), places[0].Ticket, one)
		}
		begin := time.Now()
		s.jobs.Wait()
		s.check(perSecond[0])
		if n := s.history.Len(); n != 50 || !near(time.Since(begin), 49*time.Second) {
			t.Errorf("%d go in %v", n, time.Since(begin))
		}
	})
}

func TestScheduler_SwappedTicketsSwapOrder(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		s := &punctual{t: t}
		places := book(t, line(), 10)
		places[2], places[7] = places[7], places[2]
		for i, p := range places {
			s.start(fmt.Sprint(i), line(), p.Ticket, one)
		}
		s.jobs.Wait()
		if got := fmt.Sprint(s.order); got != "[0 1 7 3 4 5 6 2 8 9]" {
			t.Errorf("they go in the order %v", got)
		}
		s.check(perSecond[0])
	})
}

// The process crashes after it has booked a place, and before the job is put back.
func TestScheduler_LostTicketBooksAgain(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		s := &punctual{t: t}
		for i := range 10 {
			if i == 5 {
				sentBack(t, line(), "", one) // and its ticket is lost
			}
			s.start(fmt.Sprint(i), line(), "", one)
		}
		begin := time.Now()
		s.start("redelivered", line(), "", one)
		s.jobs.Wait()
		if took := time.Since(begin); took > 11*time.Second+5*time.Millisecond || s.order[10] != "redelivered" || s.most() > 2 {
			t.Errorf("%v in %v, runs %v", s.order, took, s.runs)
		}
		s.check(perSecond[0])
	})
}

// After a Resume, and where a store has lost the key, nobody knows the places any more.
func TestScheduler_VoidTicketsBookAgain(t *testing.T) {
	for name, limits := range map[string][]outbound.Limit{"resumed": nil, "limits set": {{Capacity: 1, LeakRate: 2}}} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
				l, s := line(), &punctual{t: t}
				places := book(t, l, 30)
				time.Sleep(time.Millisecond) // two lives of one instant are not told apart
				rate := perSecond[0]
				if len(limits) > 0 {
					rate = limits[0]
					if err := l.SetLimits(bg, limits...); err != nil {
						t.Fatal(err)
					}
				} else {
					if err := errors.Join(l.bucket.Hold(bg, time.Hour), l.bucket.Reservations().Hold(bg, time.Hour), l.Resume(bg)); err != nil {
						t.Fatal(err)
					}
				}
				begin := time.Now()
				for i, p := range places { // the job system runs all of them now
					s.start(fmt.Sprint(i), line(), p.Ticket, one)
				}
				if later := sentBack(t, line(), places[0].Ticket, one); later.Ticket == places[0].Ticket || later.Ticket == "" {
					t.Errorf("the old ticket %q stays %q", places[0].Ticket, later.Ticket)
				}
				s.jobs.Wait()
				// The desk does not know that what was booked before will not go.
				if took := time.Since(begin).Seconds(); took > 32/rate.LeakRate+1 || s.most() > 3 {
					t.Errorf("they take %.1f s, and up to %d runs", took, s.most())
				}
				s.check(rate)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		places := book(t, New(shared(t, store.NewMemory(), "api", perSecond...), Config{}), 30)
		l := New(shared(t, store.NewMemory(), "api", perSecond...), Config{}) // another store, without the key
		time.Sleep(time.Second)
		admitted(t, l, places[20].Ticket, one)
		book(t, l, 5)
		if later := sentBack(t, l, places[0].Ticket, one); later.Ticket == places[0].Ticket || !near(later.In, 5*time.Second) {
			t.Errorf("the first is sent back: %+v", later)
		}
	})
}

// Jobs that were enqueued with places are deleted. Those who come next stand behind them until
// Resume.
func TestScheduler_ReservationsOfDeletedJobsPass(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		book(t, line(), 100)
		later := sentBack(t, line(), "", one)
		if !near(later.In, 99*time.Second) {
			t.Errorf("%+v", later)
		}
		if err := line().Resume(bg); err != nil {
			t.Fatal(err)
		}
		admitted(t, line(), later.Ticket, one)
	})
}

// What a job takes of the store, in trips, as the documentation says.
func TestScheduler_RequestsOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &trip{Memory: store.NewMemory()}
		l := New(shared(t, store, "api", perSecond...), Config{})
		took := func(want int, what string) {
			t.Helper()
			store.mu.Lock()
			if store.trips != want {
				t.Errorf("%s: %d trips, want %d", what, store.trips, want)
			}
			store.mu.Unlock()
			time.Sleep(time.Minute) // in which the queue ends its own
			store.mu.Lock()
			store.trips = 0
			store.mu.Unlock()
		}
		ticket := book(t, l, 300)[299].Ticket
		took(3, "300 reservations, and a new Scheduler asks")
		sentBack(t, l, ticket, one)
		took(3, "early, the first in a poll interval")
		time.Sleep(4 * time.Minute)
		admitted(t, l, ticket, one)
		took(4, "at its reservation, the first in a poll interval")
		admitted(t, l, "void", one)
		took(5, "admitted with a void ticket, the first in a poll interval")
		book(t, l, 1)
		admitted(t, l, book(t, l, 1)[0].Ticket, one)
		took(6, "two reservations, of which the first asks, and a job that comes at the second")
	})
}
