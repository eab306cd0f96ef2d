package jobs

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// holds counts the holds of the desk, and how often one was extended.
func holds(l *Scheduler) (n func() int64, stop func()) {
	var count atomic.Int64
	stop = l.bucket.Reservations().Observe(func(c outbound.Event) {
		if c.Kind == outbound.EventHeld || c.Kind == outbound.EventExtended {
			count.Add(1)
		}
	})
	return count.Load, stop
}

// A job that is due in a hold of the API runs once more. The desk is held by the jobs that wait at
// the gate then, which all leave together, and by none that comes after them.
func TestHold_MovesReservationsOnce(t *testing.T) {
	bothWays(t, Config{}, []outbound.Limit{{Capacity: 1, LeakRate: 10}}, func(t *testing.T, line func() *Scheduler) {
		l := line()
		n, stop := holds(l)
		defer stop()
		s := &punctual{t: t}
		begin := time.Now()
		for i, p := range book(t, l, 900) {
			s.startIn(time.Until(p.At), fmt.Sprint(i), l, p.Ticket, one)
		}
		time.AfterFunc(10*time.Second, func() {
			if err := line().bucket.Hold(bg, time.Minute); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(12 * time.Second)
		then := n()
		time.Sleep(188 * time.Second)
		s.jobs.Wait()
		took := time.Duration(0)
		for at := range s.history.All() {
			took = at.Sub(begin)
		}
		if then < 1 || n() != then || s.sum() > 2*900 || s.most() > 3 || s.history.Len() != 900 || took > 151*time.Second {
			t.Errorf("the desk is held %d times at first and %d in all, %d jobs take %v, and up to %d runs", then, n(), s.history.Len(), took, s.most())
		}
		s.check(outbound.Limit{Capacity: 1, LeakRate: 10})
	})
}

// How late a job comes says nothing about the queue: the reservations are held until the job could
// go. It has lost its own, and goes behind the others.
func TestHold_LateJobDoesNotProlongIt(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		l := line()
		places := book(t, l, 300)
		time.Sleep(200 * time.Second)
		n, stop := holds(l)
		defer stop()
		s := &punctual{t: t}
		for i, p := range places[:5] { // they have room soon
			s.start(fmt.Sprint(i), l, p.Ticket, one)
		}
		s.jobs.Wait()
		if n() != 0 {
			t.Errorf("the desk was held %d times", n())
		}
		if err := l.bucket.Hold(bg, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		// The last of the five jobs before has just gone, at 4 s. Of 300 reservations the last is at 299
		// s.
		if later := sentBack(t, l, places[6].Ticket, one); later.Ticket == places[6].Ticket || !near(later.In, 106*time.Second) {
			t.Errorf("sent back: %+v", later)
		}
		if s, err := l.bucket.Reservations().State(bg); err != nil || !near(s.HeldFor, 11*time.Second) {
			t.Errorf("the desk is held for %v, %v", s.HeldFor, err)
		}
	})
}

// All workers were away, and a thousand tickets are due at the same moment.
func TestHold_ThousandDueTicketsStayWithinTheLimit(t *testing.T) {
	bothWays(t, Config{}, []outbound.Limit{{Capacity: 1, LeakRate: 10}}, func(t *testing.T, line func() *Scheduler) {
		s := &punctual{t: t}
		places := book(t, line(), 1000)
		time.Sleep(100 * time.Second)
		lines := []*Scheduler{line(), line(), line()}
		begin := time.Now()
		for i, p := range places {
			s.start(fmt.Sprint(i), lines[i%3], p.Ticket, one)
		}
		s.jobs.Wait()
		if took := time.Since(begin); took > 101*time.Second || s.sum() > 5_000 || s.most() > 13 {
			t.Errorf("they take %v, %d runs, and up to %d of one", took, s.sum(), s.most())
		}
		t.Logf("%d runs, and up to %d of one", s.sum(), s.most())
		s.check(outbound.Limit{Capacity: 1, LeakRate: 10})
	})
}

// Jobs that are late by hours wait at the gate with others. A hold sends them all away, and nobody
// stands behind anybody then.
func TestHold_LateJobsDelayNoOtherJobs(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		l, s := line(), &punctual{t: t}
		late := book(t, l, 4)
		time.Sleep(10 * time.Hour)
		for i, p := range late {
			s.start(fmt.Sprint("late", i), l, p.Ticket, one)
		}
		s.start("a", l, "", one)
		s.start("b", l, "", one)
		begin := time.Now()
		if err := l.bucket.Hold(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		s.jobs.Wait()
		if took := time.Since(begin); took > time.Hour+10*time.Second {
			t.Errorf("after a hold of an hour they take %v", took)
		}
	})
}

// The reservations slow down with the bucket, also where no limit counts the first number of a cost.
func TestScheduler_ReservationsSlowDownInEachUnit(t *testing.T) {
	for unit := range len(outbound.Cost{}) {
		limit, cost := outbound.PerSecond(10).Of(unit, "units"), outbound.Cost{}
		cost[unit] = 1
		bothWays(t, Config{}, []outbound.Limit{limit}, func(t *testing.T, line func() *Scheduler) {
			l := line()
			for range 4 { // each second call is refused
				p, err := l.Queue().Acquire(bg, cost)
				if err != nil {
					t.Fatal(err)
				}
				p.Done()
				if p, err = l.Queue().Acquire(bg, cost); err != nil {
					t.Fatal(err)
				}
				p.Refused(time.Second)
				p.Done()
			}
			s, begin := &punctual{t: t}, time.Now()
			for i := range 300 {
				s.start(fmt.Sprint(i), l, "", cost)
			}
			time.Sleep(20 * time.Second)
			bucket, err := l.Bucket().State(bg)
			if err != nil {
				t.Fatal(err)
			}
			reserved, err := l.Bucket().Reservations().State(bg)
			if err != nil || bucket.Speed > 0.6 || reserved.Speed > 0.7 {
				t.Errorf("unit %d: the bucket has speed %v, and its reservations %v, %v", unit, bucket.Speed, reserved.Speed, err)
			}
			s.jobs.Wait()
			if took := time.Since(begin); took > 60*time.Second || s.sum() > 1200 {
				t.Errorf("unit %d: they take %v, and %d runs", unit, took, s.sum())
			}
			if unit == 0 { // which the history counts
				s.check(limit)
			}
		})
	}
}

// Two kinds of jobs that have a line each share one desk, and the rate.
func TestScheduler_SchedulersOfABucketShareReservations(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		mails, reports, s := line(), line(), &punctual{t: t}
		begin := time.Now()
		for i := range 20 {
			s.start(fmt.Sprint("mail", i), mails, "", one)
			s.start(fmt.Sprint("report", i), reports, "", one)
		}
		s.jobs.Wait()
		for i := range 20 {
			if s.order[2*i] != fmt.Sprint("mail", i) || s.order[2*i+1] != fmt.Sprint("report", i) {
				t.Fatalf("the order is %v", s.order)
			}
		}
		if took := time.Since(begin); !near(took, 39*time.Second) || s.most() > 2 {
			t.Errorf("they take %v, and up to %d runs", took, s.most())
		}
		s.check(perSecond[0])
	})
}

// New limits count at the desk and at the gate.
func TestReservations_HaveNewLimits(t *testing.T) {
	bothWays(t, Config{}, []outbound.Limit{{Capacity: 1, LeakRate: 1}, outbound.InFlight(5)}, func(t *testing.T, line func() *Scheduler) {
		l := line()
		limits := []outbound.Limit{{Capacity: 1, LeakRate: 4}}
		if !l.bucket.Shared() { // of a shared bucket it is each worker's own
			limits = append(limits, outbound.InFlight(3).Of(0, "slots"))
		}
		if err := l.SetLimits(bg, limits...); err != nil {
			t.Fatal(err)
		}
		reserved, err := line().reservations(bg)
		if err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string]*outbound.Bucket{"gate": line().bucket, "desk": reserved} {
			states, err := b.States(bg)
			if err != nil || states[0].Limit.LeakRate != 4 {
				t.Errorf("the %s has %+v, %v", name, states, err)
			}
			if inFlight := len(states) > 1; inFlight != (name == "gate") {
				t.Errorf("the %s has %d limits", name, len(states))
			}
		}
		places := book(t, l, 9)
		if in := time.Until(places[8].At); !near(in, time.Second) {
			t.Errorf("the ninth place is in %v", in)
		}
		if err := l.SetLimits(bg, outbound.InFlight(3)); !errors.Is(err, outbound.ErrInvalid) {
			t.Errorf("only an InFlight: %v", err)
		}
		if states, err := l.bucket.States(bg); err != nil || states[0].Limit.LeakRate != 4 {
			t.Errorf("then the gate has %+v, %v", states, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		store := store.NewMemory()
		l := New(shared(t, store, "api", perSecond...), Config{})
		for _, limits := range [][]outbound.Limit{{{Capacity: 1, LeakRate: 4}}, nil} { // none: the buckets' own again
			if err := l.SetLimits(bg, limits...); err != nil {
				t.Fatal(err)
			}
		}
		for _, b := range []*outbound.Bucket{l.bucket, l.bucket.Reservations()} {
			if s, err := b.State(bg); err != nil || s.Limit.LeakRate != 1 {
				t.Errorf("%+v, %v", s, err)
			}
		}
	})
}

// A gate that is far behind the desk holds it for as long. Limits that let the gate go again end
// that.
func TestReservations_NewLimitsEndTheirHold(t *testing.T) {
	for name, limits := range map[string][2]outbound.Limit{
		"day": {outbound.Daily(10, time.UTC), outbound.Daily(100, time.UTC)}, "rate": {outbound.PerHour(10), outbound.PerSecond(10)},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{}, limits[:1], func(t *testing.T, line func() *Scheduler) {
				l, places := line(), []Run(nil)
				places = book(t, l, 5)
				k := outbound.BookRequest{Wait: 24 * time.Hour, Horizon: 24 * time.Hour, Costs: slices.Repeat([]outbound.Cost{one}, 10)}
				if err := l.bucket.Book(bg, &k); err != nil || len(k.Tickets) != 10 { // by others
					t.Fatal(len(k.Tickets), err)
				}
				if later := sentBack(t, l, places[0].Ticket, one); later.In < time.Hour/2 {
					t.Fatalf("%+v", later)
				}
				if err := l.SetLimits(bg, limits[1]); err != nil {
					t.Fatal(err)
				}
				s := &punctual{t: t}
				begin := time.Now()
				for i := range 5 { // the job system runs them now
					s.start(fmt.Sprint(i), line(), places[i].Ticket, one)
				}
				s.jobs.Wait()
				if took := time.Since(begin); took > 10*time.Second {
					t.Errorf("they take %v", took)
				}
				if err := line().SetLimits(bg, limits[1]); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Limits that are in force already change nothing.
func TestReservations_EqualLimitsEndNoHold(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
		l := line()
		ticket := book(t, l, 9)[8].Ticket
		if err := errors.Join(l.bucket.Hold(bg, time.Minute), l.bucket.Reservations().Hold(bg, time.Minute)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := line().SetLimits(bg, perSecond...); err != nil {
				t.Fatal(err)
			}
		}
		if later := sentBack(t, l, ticket, one); later.Ticket != ticket || later.In < time.Minute {
			t.Errorf("%+v", later)
		}
	})
}
