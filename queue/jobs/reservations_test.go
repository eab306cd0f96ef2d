package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// holds counts how often the reservations were held, and how often a hold was extended.
func holds(s *Scheduler) (n func() int64, stop func()) {
	var count atomic.Int64
	stop = s.bucket.Reservations().Observe(func(e outbound.Event) {
		if e.Kind == outbound.EventHeld || e.Kind == outbound.EventExtended {
			count.Add(1)
		}
	})
	return count.Load, stop
}

// wantRate checks the leak rate of the reservations.
func wantRate(t *testing.T, s *Scheduler, rate float64) {
	t.Helper()
	if state, err := s.bucket.Reservations().State(bg); err != nil || state.Limit.LeakRate != rate {
		t.Errorf("the reservations have %v, %v, want %v per second", state.Limit, err, rate)
	}
}

// A job that is due in a hold of the API runs once more. The reservations are held by the jobs that wait in
// the queue then, which all leave together, and by none that comes after them.
func TestHold_MovesReservationsOnce(t *testing.T) {
	limit := outbound.Limit{Capacity: 1, LeakRate: 10}
	bothWays(t, Config{}, []outbound.Limit{limit}, func(t *testing.T, scheduler func() *Scheduler) {
		l, s := scheduler(), &punctual{t: t}
		n, stop := holds(l)
		defer stop()
		for i, r := range book(t, l, 900) {
			s.startIn(time.Until(r.At), fmt.Sprint(i), l, r.Ticket, one)
		}
		time.AfterFunc(10*time.Second, func() {
			noError(t, scheduler().bucket.Hold(bg, time.Minute))
		})
		time.Sleep(12 * time.Second)
		then := n()
		if s.end(151*time.Second, 3); then < 1 || n() != then || s.sum() > 2*900 || s.history.Len() != 900 {
			t.Errorf("the reservations are held %d times at first and %d in all, %d jobs, %d runs", then, n(), s.history.Len(), s.sum())
		}
		s.check(limit)
	})
}

// Late jobs leave as soon as the bucket has capacity, and delay no reservation. In a hold it does not count for the queue
// how late a job comes: the reservations are held until the job could be admitted. It has lost its own, and books behind
// the others.
func TestHold_LateJobDoesNotProlongIt(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		l, s := scheduler(), &punctual{t: t}
		all := book(t, l, 300)
		time.Sleep(200 * time.Second)
		n, stop := holds(l)
		defer stop()
		s.startAll(all[:5], l) // the bucket has capacity for them soon
		if s.jobs.Wait(); n() != 0 {
			t.Errorf("the reservations were held %d times", n())
		}
		must(t, l.bucket.Hold(bg, 10*time.Second))
		// The last of the five jobs before has just left, at 4 s. Of 300 reservations the last is at 299
		// s.
		if later := rescheduled(t, l, all[6].Ticket, one); later.Ticket == all[6].Ticket || !near(later.In, 106*time.Second) {
			t.Errorf("rescheduled: %+v", later)
		}
		if s, err := l.bucket.Reservations().State(bg); err != nil || !near(s.HeldFor, 11*time.Second) {
			t.Errorf("the reservations are held for %v, %v", s.HeldFor, err)
		}
	})
}

// Jobs that are late by hours wait in the queue with others. A hold reschedules them all, and none is delayed
// by another then.
func TestHold_LateJobsDelayNoOtherJobs(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		l, s := scheduler(), &punctual{t: t}
		late := book(t, l, 4)
		time.Sleep(10 * time.Hour)
		s.startAll(late, l)
		s.start("a", l, "", one)
		s.start("b", l, "", one)
		must(t, l.bucket.Hold(bg, time.Hour))
		s.end(time.Hour+10*time.Second, 10)
	})
}

// Calls that wait in the queue have no reservations in the bucket yet. The Scheduler's reservations are held for
// them, too, and stay so.
func TestHold_StaysWhileJobsWaitInTheQueue(t *testing.T) {
	bothWays(t, Config{Queue: queue.Config{MaxWait: time.Minute}}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		l, s := scheduler(), &punctual{t: t}
		all := book(t, l, 200)
		time.Sleep(100 * time.Second)
		for i := range 70 {
			s.start(fmt.Sprint(i), l.Queue(), "", one)
		}
		rescheduled(t, l, all[99].Ticket, one)
		for range 8 {
			time.Sleep(5 * time.Second)
			if later := rescheduled(t, l, all[199].Ticket, one); later.Ticket != all[199].Ticket {
				t.Errorf("%+v", later)
			}
		}
		s.jobs.Wait()
	})
}

// The reservations slow down with the bucket, also where no limit counts the first number of a cost.
func TestReservations_SlowDownInEachUnit(t *testing.T) {
	for unit := range len(outbound.Cost{}) {
		limit, cost := outbound.PerSecond(10).Of(unit, "units"), outbound.Cost{}
		cost[unit] = 1
		bothWays(t, Config{}, []outbound.Limit{limit}, func(t *testing.T, scheduler func() *Scheduler) {
			l := scheduler()
			for i := range 8 { // each second call is refused
				p, err := l.Queue().Acquire(bg, cost)
				must(t, err)
				if i%2 == 1 {
					p.Refused(time.Second)
				}
				p.Done()
			}
			s := &punctual{t: t}
			for i := range 300 {
				s.start(fmt.Sprint(i), l, "", cost)
			}
			time.Sleep(20 * time.Second)
			bucket, err := l.Bucket().State(bg)
			reserved, e := l.Bucket().Reservations().State(bg)
			if err != nil || e != nil || bucket.Speed > 0.6 || reserved.Speed > 0.7 {
				t.Errorf("unit %d: the bucket has speed %v, and its reservations %v, %v, %v", unit, bucket.Speed, reserved.Speed, err, e)
			}
			if s.end(60*time.Second, 300); s.sum() > 1200 {
				t.Errorf("unit %d: %d runs", unit, s.sum())
			}
			if unit == 0 { // which the history counts
				s.check(limit)
			}
		})
	}
}

// SetLimits sets the limits of the bucket and of the reservations, and refuses an InFlight alone.
func TestSetLimits_SetsBucketAndReservations(t *testing.T) {
	bothWays(t, Config{}, []outbound.Limit{{Capacity: 1, LeakRate: 1}, outbound.InFlight(5)}, func(t *testing.T, scheduler func() *Scheduler) {
		l := scheduler()
		limits := []outbound.Limit{{Capacity: 1, LeakRate: 4}}
		if !l.bucket.Shared() { // each process has its own InFlight of a shared bucket
			limits = append(limits, outbound.InFlight(3).Of(0, "slots"))
		}
		must(t, l.SetLimits(bg, limits...))
		if err := l.SetLimits(bg, outbound.InFlight(3)); !errors.Is(err, outbound.ErrInvalid) {
			t.Errorf("only an InFlight: %v", err)
		}
		reserved, err := scheduler().reservations(bg)
		must(t, err)
		for b, inFlight := range map[*outbound.Bucket]bool{scheduler().bucket: true, reserved: false} {
			states, err := b.States(bg)
			if err != nil || states[0].Limit.LeakRate != 4 || (len(states) > 1) != inFlight {
				t.Errorf("in flight %v: %+v, %v", inFlight, states, err)
			}
		}
		if in := time.Until(book(t, l, 9)[8].At); !near(in, time.Second) {
			t.Errorf("the ninth reservation is in %v", in)
		}
	})
}

// A bucket that is far behind the reservations holds them for as long. Limits that let the bucket admit again
// end that.
func TestSetLimits_EndsTheHoldOfReservations(t *testing.T) {
	for name, limits := range map[string][2]outbound.Limit{
		"day": {outbound.Daily(10, time.UTC), outbound.Daily(100, time.UTC)}, "rate": {outbound.PerHour(10), outbound.PerSecond(10)},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{}, limits[:1], func(t *testing.T, scheduler func() *Scheduler) {
				l := scheduler()
				all := book(t, l, 5)
				k := outbound.BookRequest{Wait: 24 * time.Hour, Horizon: 24 * time.Hour, Costs: slices.Repeat([]outbound.Cost{one}, 10)}
				if err := l.bucket.Book(bg, &k); err != nil || len(k.Tickets) != 10 { // by others
					t.Fatal(len(k.Tickets), err)
				}
				if later := rescheduled(t, l, all[0].Ticket, one); later.In < time.Hour/2 {
					t.Fatalf("%+v", later)
				}
				must(t, l.SetLimits(bg, limits[1]))
				s := &punctual{t: t}
				s.startAll(all, scheduler(), scheduler()) // the job system runs them now
				s.end(10*time.Second, 10)
			})
		})
	}
}

// Limits that are in force already change nothing.
func TestSetLimits_EqualLimitsEndNoHold(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
		l := scheduler()
		ticket := book(t, l, 9)[8].Ticket
		must(t, errors.Join(l.bucket.Hold(bg, time.Minute), l.bucket.Reservations().Hold(bg, time.Minute)))
		for range 2 {
			must(t, scheduler().SetLimits(bg, perSecond...))
		}
		if later := rescheduled(t, l, ticket, one); later.Ticket != ticket || later.In < time.Minute {
			t.Errorf("%+v", later)
		}
	})
}

// An operator's program sets limits for the bucket and does not know of Schedulers. The reservations follow in
// each process that learns of the limits.
func TestReservations_FollowSetLimits(t *testing.T) {
	for name, rate := range map[string]float64{"raised": 4, "lowered": 0.5} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{}, perSecond, func(t *testing.T, scheduler func() *Scheduler) {
				all, before, s := []*Scheduler{scheduler(), scheduler()}, &punctual{t: t}, &punctual{t: t}
				for i, r := range book(t, all[0], 10) { // those keep both processes at the bucket
					before.startIn(time.Until(r.At), fmt.Sprint(i), all[i%2], r.Ticket, one)
				}
				time.Sleep(3500 * time.Millisecond)
				limit := outbound.Limit{Capacity: 1, LeakRate: rate}
				must(t, scheduler().bucket.SetLimits(bg, limit))
				before.jobs.Wait()
				s.startAll(make([]Run, 40), all...)
				s.end(time.Duration((41/rate+1)*1e9), 3)
				wantRate(t, all[1], rate)
				for at, units := range before.history.All() {
					s.history.Add(at, units)
				}
				s.check(outbound.Limit{Capacity: 1, LeakRate: max(1, rate)})
			})
		})
	}
}

// While all jobs are rescheduled no call reaches the bucket. The Scheduler asks it for its limits.
func TestReservations_LearnOfLimitsWithoutCalls(t *testing.T) {
	bothWays(t, Config{}, []outbound.Limit{outbound.PerHour(10)}, func(t *testing.T, scheduler func() *Scheduler) {
		l, other := scheduler(), scheduler()
		ticket := book(t, l, 10)[9].Ticket
		must(t, scheduler().bucket.SetLimits(bg, outbound.PerSecond(10)))
		time.Sleep(5 * time.Second)
		admitted(t, l, ticket, one)
		admitted(t, other, ticket, one)
	})
}

// Limits that are an InFlight alone leave the reservations as they are.
func TestReservations_IgnoreInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(own(perSecond...), Config{})
		must(t, l.bucket.SetLimits(bg, outbound.InFlight(1)))
		admitted(t, l, "", one)
		wantRate(t, l, 1)
	})
}

// A process that learns of limits late takes none back that a Scheduler has set.
func TestReservations_LateProcessKeepsNewLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		scheduler := func() *Scheduler { return New(shared(m, "api", perSecond...), Config{}) }
		for _, limits := range [][]outbound.Limit{{{Capacity: 1, LeakRate: 4}}, {{Capacity: 1, LeakRate: 2}}, nil} {
			a, b := scheduler(), scheduler()
			for _, l := range []*Scheduler{a, b} {
				admitted(t, l, "", one)
				time.Sleep(time.Second)
				l.asked.Store(int64(time.Since(l.made) + 1)) // no look ends the hold below, which nothing explains
			}
			must(t, a.SetLimits(bg, limits...))
			ticket := book(t, a, 30)[29].Ticket
			if err := a.bucket.Reservations().Hold(bg, time.Minute); err != nil { // by the new limits
				t.Fatal(err)
			}
			want, err := b.bucket.State(bg) // it learns of the limits from the bucket first
			must(t, err)
			if later := rescheduled(t, b, ticket, one); later.Ticket != ticket {
				t.Errorf("with %v the ticket %q becomes %q", limits, ticket, later.Ticket)
			}
			wantRate(t, a, want.Limit.LeakRate)
			time.Sleep(2 * time.Minute)
		}
		wantRate(t, scheduler(), 1) // without limits the bucket has its own again
	})
}

// The API asks for a long pause, and an operator's program ends it. Schedulers that were made since learn
// of that, too.
func TestReservations_FollowResume(t *testing.T) {
	for _, hold := range []time.Duration{time.Hour, 72 * time.Hour} { // the latter is beyond Config.Ahead
		bothWays(t, Config{}, []outbound.Limit{{Capacity: 1, LeakRate: 10}, outbound.Window(1000, time.Hour)}, func(t *testing.T, scheduler func() *Scheduler) {
			l := scheduler()
			all := book(t, l, 30)
			must(t, l.bucket.Hold(bg, hold))
			if later := rescheduled(t, l, all[0].Ticket, one); later.In < hold/2 {
				t.Fatalf("%+v", later)
			}
			for range 3 { // the hold lasts, and so do the reservations
				time.Sleep(time.Minute)
				if later := rescheduled(t, scheduler(), all[9].Ticket, one); later.Ticket != all[9].Ticket || later.In < hold-4*time.Minute {
					t.Fatalf("%+v", later)
				}
			}
			time.Sleep(5 * time.Second)
			if later := rescheduled(t, l, all[9].Ticket, one); later.Ticket != all[9].Ticket {
				t.Fatalf("%+v", later)
			}
			must(t, scheduler().bucket.Resume(bg))
			s, a, b := &punctual{t: t}, scheduler(), scheduler()
			time.Sleep(5 * time.Second)
			s.startAll(make([]Run, 20), a, b)
			s.end(3*time.Second, 2)
		})
	}
}

// A process that lives for a second has no Scheduler that has lived for a poll interval. It learns of a Resume,
// and of nothing else that would end a hold.
func TestReservations_ShortLivedSchedulersLearnOfResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		scheduler := func() *Scheduler {
			return New(shared(m, "api", outbound.Limit{Capacity: 1, LeakRate: 10}), Config{})
		}
		l := scheduler()
		all := book(t, l, 30)
		must(t, l.bucket.Hold(bg, 12*time.Hour))
		rescheduled(t, l, all[0].Ticket, one)
		for range 500 {
			short := scheduler()
			time.Sleep(time.Second)
			if later := rescheduled(t, short, all[29].Ticket, one); later.In < time.Hour {
				t.Fatalf("the hold of the reservations has ended: %+v", later)
			}
		}
		must(t, l.bucket.Resume(bg))
		short := scheduler()
		time.Sleep(time.Second)
		_, err := short.Acquire(WithTicket(bg, all[29].Ticket), one)
		if later, ok := AsLater(err); err != nil && !ok || ok && later.In > 10*time.Second {
			t.Errorf("the next Scheduler does not know of the Resume: %v", err)
		}
	})
}

// A hold that begins while a Scheduler asks, after its request to the reservations and before that to
// the bucket, has not been ended.
func TestReservations_HoldDuringALookStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &remote{Store: store.NewMemory()}
		other := New(shared(m.Store, "api", perSecond...), Config{})
		all := book(t, other, 30)
		m.set(func(context.Context, string, *store.Op) error {
			if m.trips.Load() == 2 { // the reservations, the bucket, the job's own
				noError(t, other.bucket.Hold(bg, time.Hour))
				rescheduled(t, other, all[0].Ticket, one)
			}
			return nil
		})
		l := New(shared(m, "api", perSecond...), Config{})
		time.Sleep(6 * time.Second)
		if later := rescheduled(t, l, all[29].Ticket, one); later.Ticket != all[29].Ticket || later.In < time.Hour/2 || m.trips.Load() != 3 {
			t.Errorf("after %d requests: %+v", m.trips.Load(), later)
		}
	})
}
