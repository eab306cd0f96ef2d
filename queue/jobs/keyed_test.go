package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// watched is a limiter as a program has it that counts calls.
func watched(l outbound.Limiter) outbound.Limiter {
	note := func(context.Context, outbound.Event) {}
	return outbound.Observe(outbound.Observe(l, "inner", note), "outer", note)
}

// keyed returns a Keyed of Schedulers that shows its keys by a label. made counts the Schedulers.
func keyed(most int, c Config, around func(outbound.Limiter) outbound.Limiter) (tenants *outbound.Keyed[string], made *int) {
	made = new(int)
	return &outbound.Keyed[string]{Max: most, Label: func(string) string { return "label" }, New: func(tenant string) (outbound.Limiter, error) {
		*made++
		b, err := outbound.NewBucket(tenant, perSecond...)
		if tenant == "bucket" {
			return around(b), err
		}
		return around(New(b, c)), err
	}}, made
}

func bare(l outbound.Limiter) outbound.Limiter { return l }

// booker returns what Of finds in a limiter.
func booker(t *testing.T, l outbound.Limiter) Booker {
	t.Helper()
	b, ok := Of(l)
	if !ok {
		t.Fatalf("a %T books no reservations", l)
	}
	return b
}

// A Keyed drops a Scheduler of this process when no reservation is left, and one of a store immediately:
// its reservations are in the store.
func TestKeyed_DropsSchedulerKeepsReservations(t *testing.T) {
	for _, inStore := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			tenants, _ := keyed(1, Config{}, bare)
			if m := store.NewMemory(); inStore {
				tenants.New = func(tenant string) (outbound.Limiter, error) {
					return New(shared(m, tenant, perSecond...), Config{}), nil
				}
			}
			acme, other := tenants.For("acme"), tenants.For("other")
			book(t, booker(t, acme), 9)
			later := rescheduled(t, acme, "", one) // its reservation is due in 9 s
			if !near(later.In, 8*time.Second) {
				t.Errorf("%+v", later)
			}
			p, err := other.Acquire(bg, one)
			if dropped := err == nil; dropped != inStore {
				t.Fatalf("in a store %v: the Scheduler with reservations is dropped: %v, %v", inStore, dropped, err)
			}
			p.Done()
			p = outbound.Permit{}
			time.Sleep(later.In)
			admitted(t, acme, later.Ticket, one)
			time.Sleep(20 * time.Second)
			admitted(t, other, "", one) // acme's reservations have passed
			time.Sleep(time.Minute)
		})
	}
}

// Schedulers of many keys around one busy bucket make room for others. The last one keeps the
// bucket, and so its reservations, until both are idle.
func TestKeyed_DropsSchedulersAroundABusyBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		var bucket *outbound.Bucket
		tenants := &outbound.Keyed[int]{Max: 5, New: func(key int) (outbound.Limiter, error) {
			if key < 0 {
				return outbound.NewBucket("other", outbound.PerHour(1))
			}
			if bucket == nil { // only the Schedulers have it
				made++
				bucket = own(perSecond...)
			}
			return New(bucket, Config{Ahead: 10 * time.Hour}), nil
		}}
		for key := range 8 {
			book(t, booker(t, tenants.For(key)), 500)
			time.Sleep(time.Second)
		}
		for other := range 4 {
			admitted(t, tenants.For(-1-other), "", one)
		}
		time.Sleep(time.Minute) // only reservations are left
		if _, err := tenants.For(-5).Acquire(bg, one); !errors.Is(err, outbound.ErrFull) {
			t.Errorf("while nothing is idle: %v", err)
		}
		time.Sleep(time.Hour) // the other buckets are idle, and 4,000 reservations last until 4000 s
		if later := rescheduled(t, tenants.For(8), "", one); !near(later.In, 331*time.Second) || made != 1 {
			t.Errorf("%+v", later)
		}
	})
}

// With a Label no error has a tenant's key.
func TestKeyed_LaterHasTheLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants, _ := keyed(0, Config{Ahead: 10 * time.Second}, bare)
		secret := tenants.For("secret")
		for _, n := range []int{5, 15} { // far away, and too far ahead
			book(t, booker(t, secret), n)
			_, err := secret.Acquire(bg, one)
			var full *outbound.ThrottledError
			later, ok := AsLater(err)
			if !errors.As(err, &full) || full.Key != "label" || !ok || later.In <= 0 || err.Error() != full.Error() {
				t.Errorf("%v: %+v, %+v", err, full, later)
			}
		}
		time.Sleep(time.Minute)
	})
}

// Of finds a Scheduler also if it is observed, and nothing in another limiter.
func TestOf_FindsSchedulerInWrappers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(own(perSecond...), Config{})
		for _, l := range []outbound.Limiter{s, watched(s)} {
			if b, ok := Of(l); !ok || b != Booker(s) {
				t.Errorf("in a %T: %v, %v", l, b, ok)
			}
		}
		for _, l := range []outbound.Limiter{nil, s.Queue(), own(perSecond...), watched(nil), outbound.Unlimited{}} {
			if b, ok := Of(l); ok || b != nil {
				t.Errorf("in a %T: %v", l, b)
			}
		}
	})
}

// Of finds the Scheduler of a key, also if the Scheduler or the handle is observed. It books as the
// Scheduler does.
func TestOf_FindsTheSchedulerOfAKey(t *testing.T) {
	for name, around := range map[string]func(outbound.Limiter) outbound.Limiter{"bare": bare, "observed": watched} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tenants, _ := keyed(2, Config{}, around)
				acme, books := around(tenants.For("acme")), booker(t, around(tenants.For("acme")))
				if books != booker(t, tenants.For("acme")) || books == booker(t, tenants.For("bolt")) {
					t.Error("the Bookers of one key are not equal, or those of two are")
				}
				all := book(t, books, 3)
				if !near(time.Until(all[2].At), time.Second) {
					t.Fatal(all)
				}
				if later := rescheduled(t, acme, "", one); !near(later.In, 2*time.Second) {
					t.Errorf("%+v", later)
				}
				admitted(t, acme, all[0].Ticket, one)
				admitted(t, tenants.For("bolt"), "", one)
				var cost *outbound.CostError
				if _, err := books.Book(bg, outbound.Cost{2}); !errors.As(err, &cost) || cost.Key != "label" {
					t.Errorf("%v", err)
				}
				if all, err := booker(t, tenants.For("cone")).Book(bg, one); all != nil || !errors.Is(err, outbound.ErrFull) {
					t.Errorf("without room: %v, %v", all, err)
				}
				time.Sleep(time.Hour) // an observed Scheduler is dropped, too
				if all, err := booker(t, tenants.For("bucket")).Book(bg, one); all != nil || !errors.Is(err, outbound.ErrInvalid) {
					t.Errorf("a bucket: %v, %v", all, err)
				}
				if _, err := booker(t, (*outbound.Keyed[string])(nil).For("acme")).Book(bg, one); !errors.Is(err, outbound.ErrInvalid) {
					t.Errorf("no Keyed: %v", err)
				}
			})
		})
	}
}

// A key whose Scheduler was dropped has another one, and the Booker of the first books in that.
func TestKeyed_BookerOutlivesItsScheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants, made := keyed(1, Config{}, watched)
		acme := booker(t, tenants.For("acme"))
		for range 2 {
			book(t, acme, 2)
			if _, err := tenants.Acquire(bg, "bolt", one); !errors.Is(err, outbound.ErrFull) {
				t.Errorf("a Scheduler with reservations is dropped: %v", err)
			}
			time.Sleep(time.Hour)
			admitted(t, tenants.For("bolt"), "", one)
			time.Sleep(time.Hour)
		}
		if *made < 4 {
			t.Errorf("made %d: nothing was dropped", *made)
		}
		if later := rescheduled(t, tenants.For("acme"), book(t, acme, 5)[4].Ticket, one); !near(later.In, 3*time.Second) {
			t.Errorf("its reservation is not in the Scheduler that the key has: %+v", later)
		}
		time.Sleep(time.Hour)
	})
}

// tenants is a simulation of a hundred tenants with a quota each. Of all but one a job comes now
// and then, ten a second together. The hot one has all of its jobs at the start.
type tenants struct {
	System string
	Rate   float64 // of each tenant
	Hot    int
	Length time.Duration
	Insert bool // the hot tenant's reservations are booked when its jobs are enqueued
}

type tenantsOutcome struct {
	Runs, Touched, Hot, Others, Missing int
	P95                                 time.Duration // of the others' waits
}

func (f tenants) simulate(t *testing.T) (o tenantsOutcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const procs, poll = 5, time.Second
		m := &remote{Store: store.NewMemory()}
		limit := outbound.Limit{Capacity: 1, LeakRate: f.Rate}
		w := &world{system: f.System, rnd: rand.New(rand.NewPCG(3, 4)), procs: procs, workers: 10, poll: poll, work: 50 * time.Millisecond}
		var schedulers [procs]*outbound.Keyed[string]
		for i := range schedulers {
			schedulers[i] = &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
				return New(shared(m, tenant, limit), Config{PollInterval: poll}), nil
			}}
		}
		var histories [100]outboundtest.History
		w.acquire = func(ctx context.Context, proc int, j *job) (outbound.Permit, error) {
			p, err := schedulers[proc].Acquire(ctx, fmt.Sprint("tenant", j.tenant), one)
			if err == nil {
				histories[j.tenant].Add(time.Now(), 1)
			}
			return p, err
		}
		ctx, cancel := context.WithCancel(bg)
		runs := make([]Run, f.Hot)
		if f.Insert && f.Hot > 0 {
			runs = book(t, New(shared(m, "tenant0", limit), Config{PollInterval: poll}), f.Hot)
		}
		for _, r := range runs {
			w.enqueue(0, r)
		}
		w.start(ctx)
		rnd := rand.New(rand.NewPCG(5, 6))
		for begin := time.Now(); time.Since(begin) < f.Length; {
			time.Sleep(time.Duration(rnd.ExpFloat64() * float64(100*time.Millisecond)))
			w.enqueue(1+rnd.IntN(99), Run{})
		}
		cancel()
		w.mu.Lock()
		o.Runs = w.runs
		done := w.done[:len(w.done):len(w.done)]
		w.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		var waits []time.Duration // of the others
		for _, j := range done {
			if j.tenant == 0 {
				o.Hot++
			} else {
				waits = append(waits, j.began.Sub(j.came))
			}
		}
		for _, j := range w.jobs {
			if j.runs > 0 {
				o.Touched++
			}
			if j.tenant != 0 && j.began.IsZero() && time.Since(j.came) > time.Minute+10*time.Second {
				o.Missing++
			}
		}
		slices.Sort(waits)
		o.Others, o.P95 = len(waits), waits[len(waits)*95/100]
		for i := range histories {
			if err := histories[i].Check(limit.Capacity, limit.LeakRate, 0.05*limit.LeakRate); err != nil {
				t.Errorf("tenant %d: %v", i, err)
			}
		}
	})
	return o
}

// A tenant with far more jobs than its quota admits keeps no worker from the others' jobs, and
// uses all of its quota.
func TestTenants_HotTenantDelaysNoOther(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	for _, f := range []tenants{
		{System: "asynq", Rate: 1, Hot: 2000, Length: 320 * time.Second},
		{System: "river", Rate: 1, Hot: 2000, Length: 320 * time.Second},
		{System: "asynq", Rate: 20, Hot: 20_000, Length: 220 * time.Second},
		{System: "river", Rate: 20, Hot: 20_000, Length: 220 * time.Second, Insert: true},
	} {
		if raced && f.Rate > 1 {
			continue
		}
		hot, calm := f, f
		calm.Hot = 0
		o, without := hot.simulate(t), calm.simulate(t)
		slower := 200 * time.Millisecond
		if f.Rate > 1 { // those that wait in workers are as many of the hot tenant's jobs as leave in a Lead
			slower = time.Second
		}
		quota := f.Rate * f.Length.Seconds()
		if o.P95 > without.P95+slower || o.Missing > 0 || float64(o.Hot) < 0.98*quota || float64(o.Runs) > 1.05*float64(o.Touched+o.Hot+o.Others) {
			t.Errorf("%+v: %+v\nwithout the hot one: %+v", f, o, without)
		}
		t.Logf("%+v: %+v\nwithout the hot one: %+v", f, o, without)
	}
}
