package jobs

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// An operator's program sets limits for the bucket and knows nothing of lines. Whichever process
// hears of them has the desk follow.
func TestReservations_FollowSetLimits(t *testing.T) {
	for name, rate := range map[string]float64{"raised": 4, "lowered": 0.5} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
				lines, s := []*Scheduler{line(), line()}, &punctual{t: t}
				for i, p := range book(t, lines[0], 10) { // those keep both processes at the gate
					s.startIn(time.Until(p.At), fmt.Sprint("before", i), lines[i%2], p.Ticket, one)
				}
				time.Sleep(3500 * time.Millisecond)
				limit := outbound.Limit{Capacity: 1, LeakRate: rate}
				if err := line().bucket.SetLimits(bg, limit); err != nil {
					t.Fatal(err)
				}
				s.jobs.Wait()
				begin := time.Now()
				for i := range 40 {
					s.start(fmt.Sprint(i), lines[i%2], "", one)
				}
				s.jobs.Wait()
				if took := time.Since(begin); took.Seconds() > 41/rate+1 || s.most() > 3 {
					t.Errorf("they take %v, and up to %d runs", took, s.most())
				}
				if state, err := lines[1].bucket.Reservations().State(bg); err != nil || state.Limit.LeakRate != rate {
					t.Errorf("the desk has %v, %v", state.Limit, err)
				}
				s.check(outbound.Limit{Capacity: 1, LeakRate: max(1, rate)})
			})
		})
	}
}

// While the desk sends all jobs away nobody comes to the gate. The line asks what has become of it.
func TestReservations_LearnOfLimitsWithoutCalls(t *testing.T) {
	bothWays(t, Config{}, []outbound.Limit{outbound.PerHour(10)}, func(t *testing.T, line func() *Scheduler) {
		l, other := line(), line()
		ticket := book(t, l, 10)[9].Ticket
		if err := line().bucket.SetLimits(bg, outbound.PerSecond(10)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		for _, l := range []*Scheduler{l, other} {
			admitted(t, l, ticket, one)
		}
	})
}

// A process that hears of limits late takes none back that a line has set.
func TestReservations_LateProcessSetsNoOldLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := store.NewMemory()
		line := func() *Scheduler { return New(shared(t, store, "api", perSecond...), Config{}) }
		for _, limits := range [][]outbound.Limit{{{Capacity: 1, LeakRate: 4}}, {{Capacity: 1, LeakRate: 2}}, nil} {
			a, b := line(), line()
			for _, l := range []*Scheduler{a, b} {
				admitted(t, l, "", one)
				time.Sleep(time.Second)
				l.asked.Store(int64(time.Since(l.made) + 1)) // no look ends the hold below, which nothing explains
			}
			if err := a.SetLimits(bg, limits...); err != nil {
				t.Fatal(err)
			}
			places := book(t, a, 30)
			if err := a.bucket.Reservations().Hold(bg, time.Minute); err != nil { // by the new limits
				t.Fatal(err)
			}
			if _, err := b.bucket.State(bg); err != nil { // it hears of the gate first
				t.Fatal(err)
			}
			if later := sentBack(t, b, places[29].Ticket, one); later.Ticket != places[29].Ticket {
				t.Errorf("with %v the ticket %q is %q now", limits, places[29].Ticket, later.Ticket)
			}
			want, err := b.bucket.State(bg)
			if got, e := a.bucket.Reservations().State(bg); err != nil || e != nil || got.Limit != want.Limit {
				t.Errorf("the desk has %v, and the gate %v, %v, %v", got.Limit, want.Limit, err, e)
			}
			time.Sleep(2 * time.Minute)
		}
	})
}

// An InFlight tells no times: the desk keeps its limits.
func TestReservations_IgnoreInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(own(t, perSecond...), Config{})
		if err := l.bucket.SetLimits(bg, outbound.InFlight(1)); err != nil {
			t.Fatal(err)
		}
		admitted(t, l, "", one)
		if s, err := l.bucket.Reservations().State(bg); err != nil || s.Limit.LeakRate != 1 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// The API asks for a long pause, and an operator's program ends it. Lines that were made since hear
// of that, too.
func TestReservations_FollowResume(t *testing.T) {
	for _, hold := range []time.Duration{time.Hour, 72 * time.Hour} { // the latter is beyond Config.Ahead
		bothWays(t, Config{}, []outbound.Limit{{Capacity: 1, LeakRate: 10}, outbound.Window(1000, time.Hour)}, func(t *testing.T, line func() *Scheduler) {
			l := line()
			places := book(t, l, 30)
			if err := l.bucket.Hold(bg, hold); err != nil {
				t.Fatal(err)
			}
			if later := sentBack(t, l, places[0].Ticket, one); later.In < hold/2 {
				t.Fatalf("%+v", later)
			}
			for range 3 { // the hold stands, and so do the places
				time.Sleep(time.Minute)
				if later := sentBack(t, line(), places[9].Ticket, one); later.Ticket != places[9].Ticket || later.In < hold-4*time.Minute {
					t.Fatalf("%+v", later)
				}
			}
			time.Sleep(5 * time.Second)
			if later := sentBack(t, l, places[9].Ticket, one); later.Ticket != places[9].Ticket {
				t.Fatalf("%+v", later)
			}
			if err := line().bucket.Resume(bg); err != nil {
				t.Fatal(err)
			}
			lines, s := []*Scheduler{line(), line()}, &punctual{t: t}
			time.Sleep(5 * time.Second)
			begin := time.Now()
			for i := range 20 {
				s.start(fmt.Sprint(i), lines[i%2], "", one)
			}
			s.jobs.Wait()
			if took := time.Since(begin); took > 3*time.Second || s.most() > 2 {
				t.Errorf("they take %v, and up to %d runs", took, s.most())
			}
		})
	}
}

// A process that lives for a second has no Scheduler that has lived for a poll interval.
func TestReservations_ShortLivedSchedulersLearnOfResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := store.NewMemory()
		line := func() *Scheduler {
			return New(shared(t, store, "api", outbound.Limit{Capacity: 1, LeakRate: 10}), Config{})
		}
		l := line()
		places := book(t, l, 30)
		if err := l.bucket.Hold(bg, 12*time.Hour); err != nil {
			t.Fatal(err)
		}
		sentBack(t, l, places[0].Ticket, one)
		live := func() time.Duration {
			l := line()
			time.Sleep(time.Second)
			p, err := l.Acquire(WithTicket(bg, places[29].Ticket), one)
			p.Done()
			later, ok := AsLater(err)
			if !ok && err != nil {
				t.Fatal(err)
			} else if !ok {
				return 0
			}
			return later.In
		}
		for range 500 {
			if in := live(); in < time.Hour {
				t.Fatalf("the hold of the desk has ended: %v", in)
			}
		}
		if err := l.bucket.Resume(bg); err != nil {
			t.Fatal(err)
		}
		if in := live(); in > 10*time.Second {
			t.Errorf("the next Scheduler knows nothing of the Resume: %v", in)
		}
	})
}

// Calls that wait in the queue have no places in the bucket yet. The desk is held for them, too,
// and stays so.
func TestReservations_HeldWhileJobsWaitInTheQueue(t *testing.T) {
	bothWays(t, Config{Queue: queue.Config{MaxWait: time.Minute}}, perSecond, func(t *testing.T, line func() *Scheduler) {
		l, s := line(), &punctual{t: t}
		places := book(t, l, 200)
		time.Sleep(100 * time.Second)
		for i := range 70 {
			s.start(fmt.Sprint(i), l.Queue(), "", one)
		}
		sentBack(t, l, places[99].Ticket, one)
		for range 8 {
			time.Sleep(5 * time.Second)
			if p, err := l.Acquire(WithTicket(bg, places[199].Ticket), one); err == nil {
				p.Done()
				t.Error("a job whose place is far away is admitted")
			} else if later, ok := AsLater(err); !ok || later.Ticket != places[199].Ticket {
				t.Errorf("%v", err)
			}
		}
		s.jobs.Wait()
	})
}

// A hold that begins while a Scheduler asks, after its trip to the reservations and before that to
// the bucket, has not been ended by anything.
func TestReservations_HoldDuringALookStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := store.NewMemory()
		other := New(shared(t, kept, "api", perSecond...), Config{})
		places, trips := book(t, other, 30), new(atomic.Int64)
		l := New(shared(t, &hung{Memory: kept, hangs: func(*store.Op) bool {
			if trips.Add(1) == 2 { // the reservations, the bucket, the job's own
				if err := other.bucket.Hold(bg, time.Hour); err != nil {
					t.Error(err)
				}
				sentBack(t, other, places[0].Ticket, one)
			}
			return false
		}}, "api", perSecond...), Config{})
		time.Sleep(6 * time.Second)
		if later := sentBack(t, l, places[29].Ticket, one); later.Ticket != places[29].Ticket || later.In < time.Hour/2 || trips.Load() != 3 {
			t.Errorf("after %d trips: %+v", trips.Load(), later)
		}
	})
}
