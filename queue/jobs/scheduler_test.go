package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// A job that comes before its head start is rescheduled with its ticket, unless it is early by no more
// than Config.Early.
func TestScheduler_EarlyJobKeepsTicket(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		last := book(t, scheduler(), 10)[9] // due in 9 s
		begin := time.Now()
		if in := time.Until(last.At); !near(in, 8*time.Second) {
			t.Errorf("the last job is to run in %v", in)
		}
		for _, at := range []time.Duration{0, 3 * time.Second, 7800 * time.Millisecond} {
			time.Sleep(at - time.Since(begin))
			later := rescheduled(t, scheduler(), last.Ticket, one)
			if !near(later.In, 8*time.Second-at) || later.Ticket != last.Ticket || later.Err != nil || !errors.Is(later, outbound.ErrThrottled) {
				t.Errorf("at %v it is rescheduled: %+v", at, later)
			}
		}
		time.Sleep(7950*time.Millisecond - time.Since(begin))
		admitted(t, scheduler(), last.Ticket, one)
		if at := time.Since(begin); !near(at, 7950*time.Millisecond) { // no other job has come
			t.Errorf("it is admitted after %v", at)
		}
	})
}

// All processes were stopped, and start again with a load of nine tenths of the rate. The jobs that are late
// are not overtaken by those on time, again and again.
func TestScheduler_LateJobsAreNotOvertakenForLong(t *testing.T) {
	limit := outbound.Limit{Capacity: 1, LeakRate: 10}
	bothWays(t, Config{}, []outbound.Limit{limit}, func(t *testing.T, scheduler func() *Scheduler) {
		all, s, punctuals := []*Scheduler{scheduler(), scheduler(), scheduler()}, &punctual{t: t}, &punctual{t: t}
		late := book(t, all[0], 600)
		time.Sleep(70 * time.Second)
		s.startAll(late, all...)
		punctuals.jobs.Go(func() {
			for i := range 9 * 300 {
				time.Sleep(time.Second / 9)
				punctuals.startIn(0, fmt.Sprint(i), all[i%3], "", one)
			}
		})
		took := s.end(2*time.Minute, 20) // 60 s at the rate alone
		t.Logf("600 late jobs take %v, %d runs, and up to %d of one", took, s.sum(), s.most())
		punctuals.end(345*time.Second, 20) // 330 s at the rate alone
		for at, units := range punctuals.history.All() {
			s.history.Add(at, units)
		}
		s.check(limit)
	})
}

// Jobs that come together, twice or not at all change the order of the jobs, and not how many leave.
func TestScheduler_TicketsChangeOnlyTheOrder(t *testing.T) {
	for name, c := range map[string]struct {
		rate   float64
		booked int
		jobs   func(s *punctual, scheduler func() *Scheduler, booked []Run)
		within time.Duration // for all jobs
		most   int           // runs of a job
		sum    int           // of the runs
		order  string        // in which they leave, or nothing
	}{
		"all processes were stopped, and a thousand tickets are due together": {rate: 10, booked: 1000, jobs: func(s *punctual, scheduler func() *Scheduler, booked []Run) {
			time.Sleep(100 * time.Second)
			s.startAll(booked, scheduler(), scheduler(), scheduler())
		}, within: 101 * time.Second, most: 13, sum: 5_000},
		"a job that does not come costs a call's time at most, and none if others wait": {rate: 1, booked: 40, jobs: func(s *punctual, scheduler func() *Scheduler, booked []Run) {
			for i, r := range booked {
				if i%4 != 1 { // three in four come
					s.start(fmt.Sprint(i), scheduler(), r.Ticket, one)
				}
			}
		}, within: 39*time.Second + 5*time.Millisecond, most: 2, sum: 60},
		"tickets that are swapped": {rate: 1, booked: 10, jobs: func(s *punctual, scheduler func() *Scheduler, booked []Run) {
			booked[2], booked[7] = booked[7], booked[2]
			s.startAll(booked, scheduler(), scheduler())
		}, within: 10 * time.Second, most: 2, sum: 20, order: "[0 1 7 3 4 5 6 2 8 9]"},
		"a process crashes before a job is rescheduled: it books again": {rate: 1, jobs: func(s *punctual, scheduler func() *Scheduler, _ []Run) {
			s.startAll(make([]Run, 5), scheduler())
			rescheduled(s.t, scheduler(), "", one) // and its ticket is lost
			for i := range 5 {
				s.start(fmt.Sprint(5+i), scheduler(), "", one)
			}
			s.start("redelivered", scheduler(), "", one)
		}, within: 11*time.Second + 5*time.Millisecond, most: 2, sum: 22, order: "[0 1 2 3 4 5 6 7 8 9 redelivered]"},
		"two Schedulers around a bucket, for two kinds of jobs, share its reservations": {rate: 1, jobs: func(s *punctual, scheduler func() *Scheduler, _ []Run) {
			s.startAll(make([]Run, 40), scheduler(), scheduler())
		}, within: 39*time.Second + 5*time.Millisecond, most: 2, sum: 80, order: "[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39]"},
	} {
		t.Run(name, func(t *testing.T) {
			limit := outbound.Limit{Capacity: 1, LeakRate: c.rate}
			bothWays(t, Config{}, []outbound.Limit{limit}, func(t *testing.T, scheduler func() *Scheduler) {
				s := &punctual{t: t}
				c.jobs(s, scheduler, book(t, scheduler(), c.booked))
				if s.end(c.within, c.most); s.sum() > c.sum || c.order != "" && fmt.Sprint(s.order) != c.order {
					t.Errorf("%d runs, and the order is %v", s.sum(), s.order)
				}
				s.check(limit)
			})
		})
	}
}

// Job systems deliver a job twice now and then, and tickets can be copied: each run is charged.
func TestScheduler_JobDeliveredTwiceIsChargedTwice(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		s, all := &punctual{t: t}, book(t, scheduler(), 20)
		for i, r := range all {
			for twin := range 2 {
				s.start(fmt.Sprint(i, twin), scheduler(), r.Ticket, one)
			}
		}
		for i := range 10 { // forged: the first reservation again and again
			s.start(fmt.Sprint("forged", i), scheduler(), all[0].Ticket, one)
		}
		s.jobs.Wait()
		s.check(perSecond[0])
		if n, took := s.history.Len(), time.Since(s.begin); n != 50 || !near(took, 49*time.Second) {
			t.Errorf("%d are admitted in %v", n, took)
		}
	})
}

// Whatever a ticket contains, its job gets a reservation behind the others.
func TestScheduler_InvalidTicketBooksAgain(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		s := scheduler()
		good := book(t, s, 5)[4].Ticket
		prefix := good[:strings.LastIndex(good, ":")+1]
		for i, ticket := range []string{"", "garbage", "1-", prefix, prefix + "zzzzzzzzzzz", prefix + "1y2p0ij32e8e7", "1-0:0:0", strings.Repeat("1-", 1<<19), good + "\x00"} {
			later := rescheduled(t, s, ticket, one)
			if later.Ticket == ticket || !near(later.In, time.Duration(4+i)*time.Second) {
				t.Errorf("%.40q is rescheduled for %v with %q", ticket, later.In, later.Ticket)
			}
		}
	})
}

// After a Resume, after other limits, and where a store has lost the key, all tickets are void: jobs book again.
func TestScheduler_VoidTicketsBookAgain(t *testing.T) {
	for name, limits := range map[string][]outbound.Limit{"resumed": nil, "limits set": {{Capacity: 1, LeakRate: 2}}} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
				l, s := scheduler(), &punctual{t: t}
				all := book(t, l, 30)
				time.Sleep(time.Millisecond) // two states of one instant are not told apart
				rate, err := perSecond[0], error(nil)
				if len(limits) > 0 {
					rate, err = limits[0], l.SetLimits(bg, limits...)
				} else {
					err = errors.Join(l.bucket.Hold(bg, time.Hour), l.bucket.Reservations().Hold(bg, time.Hour), l.Resume(bg))
				}
				must(t, err)
				s.startAll(all, scheduler(), scheduler()) // the job system runs all of them now
				if later := rescheduled(t, scheduler(), all[0].Ticket, one); later.Ticket == all[0].Ticket || later.Ticket == "" {
					t.Errorf("the void ticket %q stays %q", all[0].Ticket, later.Ticket)
				}
				// It is unknown that no job comes for what was booked before.
				s.end(time.Duration((32/rate.LeakRate+1)*1e9), 3)
				s.check(rate)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		all := book(t, New(shared(store.NewMemory(), "api", perSecond...), Config{}), 30)
		s := New(shared(store.NewMemory(), "api", perSecond...), Config{}) // another store, without the key
		time.Sleep(time.Second)
		admitted(t, s, all[20].Ticket, one)
		book(t, s, 5)
		if later := rescheduled(t, s, all[0].Ticket, one); later.Ticket == all[0].Ticket || !near(later.In, 5*time.Second) {
			t.Errorf("the first is rescheduled: %+v", later)
		}
	})
}

// Jobs that were enqueued with reservations are deleted. Those that come next are behind them until 2 s after a Resume.
func TestScheduler_ReservationsOfDeletedJobsPass(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		book(t, scheduler(), 100)
		later := rescheduled(t, scheduler(), "", one)
		if !near(later.In, 99*time.Second) {
			t.Errorf("%+v", later)
		}
		must(t, scheduler().Resume(bg))
		later = rescheduled(t, scheduler(), later.Ticket, one) // what was reserved within a second counts
		time.Sleep(2 * time.Second)
		admitted(t, scheduler(), later.Ticket, one)
	})
}

// A job takes as many requests to the store as the documentation says.
func TestScheduler_RequestsOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &remote{Store: store.NewMemory()}
		s := New(shared(m, "api", perSecond...), Config{})
		took := func(want int64, what string) {
			t.Helper()
			if n := m.trips.Load(); n != want {
				t.Errorf("%s: %d requests, want %d", what, n, want)
			}
			time.Sleep(time.Minute) // in which the queue ends its own
			m.trips.Store(0)
		}
		ticket := book(t, s, 300)[299].Ticket
		took(3, "300 reservations, and a new Scheduler asks")
		rescheduled(t, s, ticket, one)
		took(3, "early, the first in a poll interval")
		time.Sleep(4 * time.Minute)
		admitted(t, s, ticket, one)
		took(4, "at its reservation, the first in a poll interval")
		admitted(t, s, "void", one)
		took(5, "admitted with a void ticket, the first in a poll interval")
		book(t, s, 1)
		admitted(t, s, book(t, s, 1)[0].Ticket, one)
		took(6, "two reservations, of which the first asks, and a job that comes at the second")
	})
}

// Jobs of several costs, under several limits of several kinds: each limit is kept.
func TestScheduler_CostsAndLimitsOfAllKinds(t *testing.T) {
	for name, limits := range map[string][]outbound.Limit{
		"leaky":  {{Capacity: 2, LeakRate: 10, Name: "calls"}, {Capacity: 50, LeakRate: 30, Unit: 1, Name: "tokens"}},
		"per":    {outbound.PerSecond(10), outbound.PerMinute(1800).Burst(30).Of(1, "tokens")},
		"window": {outbound.Window(10, time.Second), outbound.Window(300, 10*time.Second).Of(1, "tokens")},
		"long":   {outbound.PerSecond(20), outbound.FixedWindow(100, 10*time.Second)},
		"day":    {outbound.PerSecond(10), outbound.Daily(150, time.UTC)},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{}, limits, func(t *testing.T, scheduler func() *Scheduler) {
				var tokens outboundtest.History
				s, rnd := &punctual{t: t}, rand.New(rand.NewPCG(1, 1))
				all := []*Scheduler{scheduler(), scheduler()}
				const jobs = 200
				for i := range jobs {
					c := outbound.Cost{1, float64(rnd.IntN(30))}
					if name == "long" || name == "day" {
						c[1] = 0
					}
					s.startIn(0, fmt.Sprint(i), counted{all[i%2], &tokens}, "", c)
					if i < 2 {
						time.Sleep(time.Millisecond)
					}
				}
				most := 100 * time.Second // for 2,900 tokens
				if name == "day" {        // fifty of them wait for the next day
					most = 25 * time.Hour
				}
				if s.end(most, jobs); s.history.Len() != jobs || s.sum() > 3*jobs {
					t.Errorf("%d jobs, %d runs", s.history.Len(), s.sum())
				}
				var err error
				switch name {
				case "leaky", "per":
					s.check(limits[0])
					err = tokens.Check(limits[1].Capacity, limits[1].LeakRate, 0.05*limits[1].LeakRate)
				case "window":
					err = errors.Join(s.history.CheckWindow(10, 990*time.Millisecond), tokens.CheckWindow(300, 9990*time.Millisecond))
				case "long":
					s.check(limits[0])
				case "day":
					err = s.history.CheckCalendar(150, outboundtest.Day, time.UTC, time.Second)
				}
				noError(t, err)
			})
		})
	}
}

// counted notes what the calls take of the second unit.
type counted struct {
	*Scheduler
	history *outboundtest.History
}

func (l counted) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := l.Scheduler.Acquire(ctx, c)
	if err == nil {
		l.history.Add(time.Now(), c[1])
	}
	return p, err
}

// Other calls take a part of a window. Jobs that find it full wait for the next, and do not hold the
// reservations for that.
func TestScheduler_OtherCallsUseTheWindow(t *testing.T) {
	for name, limit := range map[string]outbound.Limit{
		"fixed": outbound.FixedWindow(100, time.Hour), "moving": outbound.Window(100, time.Hour), "hour": outbound.Hourly(100),
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{}, []outbound.Limit{limit}, func(t *testing.T, scheduler func() *Scheduler) {
				others, s := queue.New(scheduler().bucket, queue.Config{}), &punctual{t: t}
				begin, left := time.Now(), new(atomic.Int64)
				take := func() {
					for range 10 {
						s.jobs.Go(func() {
							if p, err := others.Acquire(bg, one); err == nil {
								left.Add(1)
								p.Done()
							}
						})
						synctest.Wait()
					}
				}
				take()
				for i := range 5 {
					s.jobs.Go(func() { time.Sleep(time.Duration(i+1) * time.Hour); take() })
				}
				const jobs = 400 // 90 are admitted in a window
				s.startAll(make([]Run, jobs), scheduler())
				s.jobs.Wait()
				if took := s.history.Total().End.Sub(begin); took > 4*time.Hour+time.Minute || s.history.Len() != jobs || left.Load() != 60 || s.most() > 12 {
					t.Errorf("%d jobs in %v, %d runs, up to %d of one; %d others", s.history.Len(), took, s.sum(), s.most(), left.Load())
				}
			})
		})
	}
}

// Do reports whether the job has run, and the wait that the API has asked for.
func TestDo_ReportsRunAndTheAPIsWait(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		job   func(*outbound.Permit) error
		pause time.Duration
	}{
		"well":      {func(*outbound.Permit) error { return nil }, 0},
		"fails":     {func(*outbound.Permit) error { return boom }, 0},
		"refused":   {func(p *outbound.Permit) error { p.Refused(time.Minute); return boom }, time.Minute},
		"no time":   {func(p *outbound.Permit) error { p.Refused(0); return boom }, time.Second},
		"short":     {func(p *outbound.Permit) error { p.Refused(time.Millisecond); return boom }, time.Millisecond},
		"the worst": {func(p *outbound.Permit) error { p.Hold(time.Hour); p.Refused(time.Minute); return boom }, time.Hour},
		"invalid":   {func(p *outbound.Permit) error { p.Hold(-1); return boom }, 0},
	} {
		ran, pause, err := Do(bg, own(perSecond...), one, func(ctx context.Context) error { return c.job(outbound.PermitFrom(ctx)) })
		if !ran || pause != c.pause || (err == boom) != (name != "well") {
			t.Errorf("%s: %v, %v, %v", name, ran, pause, err)
		}
	}
	full := own(perSecond...)
	admitted(t, full, "", one)
	for _, l := range []outbound.Limiter{full, nil} {
		ran, pause, err := Do(bg, l, one, func(context.Context) error { return nil })
		if ran || pause != 0 || err == nil || errors.Is(err, outbound.ErrInvalid) != (l == nil) {
			t.Errorf("%v, %v, %v", ran, pause, err)
		}
	}
}

// The charge of a job pays for its first request by the same bucket, and for no other.
func TestDo_ChargePaysForTheFirstRequest(t *testing.T) {
	b := own(outbound.Limit{Capacity: 5, LeakRate: 1e-6})
	_, _, err := Do(bg, New(b, Config{}), one, func(ctx context.Context) error {
		for range 2 {
			var p outbound.Permit
			if err := p.AcquireIn(ctx, b, one); err != nil {
				return err
			}
			p.Done()
		}
		return nil
	})
	if s, e := b.State(bg); err != nil || e != nil || s.Level < 1.9 || s.Level > 2.1 {
		t.Errorf("charged %v, want 2; %v, %v", s.Level, err, e)
	}
}

// AsLater finds a Later, or makes one of the error of the job's own client.
func TestLater_HasTheTimeOfTheNextRun(t *testing.T) {
	later := &Later{In: time.Second, Ticket: "t"}
	full := &outbound.ThrottledError{Key: "api", RetryAfter: 3 * time.Second}
	inside := &url.Error{Op: "Get", URL: "https://api.example.com", Err: full} // of the job's own client
	for _, c := range []struct {
		err    error
		in     time.Duration
		ticket string
	}{
		{later, time.Second, "t"}, {fmt.Errorf("job 7: %w", later), time.Second, "t"}, {errors.Join(full, later), time.Second, "t"},
		{inside, 3 * time.Second, ""}, {&outbound.ThrottledError{}, 5 * time.Second, ""},
	} {
		got, ok := AsLater(c.err)
		if !ok || got.In != c.in || got.Ticket != c.ticket {
			t.Errorf("%v: %+v, %v", c.err, got, ok)
		}
	}
	if got, _ := AsLater(inside); !errors.Is(got, outbound.ErrThrottled) || !errors.Is(got, full) {
		t.Errorf("%+v is not the client's error", got)
	}
	for _, err := range []error{nil, errors.New("broken"), &outbound.CostError{Err: outbound.ErrTooLarge}} {
		if got, ok := AsLater(err); ok || got != nil {
			t.Errorf("%v: %+v", err, got)
		}
	}
}

// A Later without an Err is ErrThrottled, and else its Err.
func TestLater_HasTheReason(t *testing.T) {
	for _, l := range []*Later{{In: time.Second}, {}} {
		if !errors.Is(l, outbound.ErrThrottled) || errors.As(l, new(*outbound.ThrottledError)) || l.RetryableError() || !strings.HasPrefix(l.Error(), "jobs: ") {
			t.Errorf("%+v: %v", l, l)
		}
	}
	closed := &Later{Err: queue.ErrClosed}
	if errors.Is(closed, outbound.ErrThrottled) || !errors.Is(closed, queue.ErrClosed) || !strings.HasSuffix(closed.Error(), ": queue: closed") {
		t.Error(closed)
	}
}
