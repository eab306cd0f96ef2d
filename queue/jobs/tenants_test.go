package jobs

import (
	"context"
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

// tenants is a simulation of a hundred tenants with a quota each. Of all but one a job comes now
// and then, ten a second together. The hot one has all of its jobs at the start.
type tenants struct {
	system string
	rate   float64 // of each tenant
	hot    int
	length time.Duration
	insert bool // the hot tenant's reservations are booked when its jobs are enqueued
}

func (f tenants) String() string {
	return fmt.Sprintf("%s, %v/s for each tenant, %d jobs of one", f.system, f.rate, f.hot)
}

type tenantsOutcome struct {
	runs, touched, hot, others, missing int
	p95                                 time.Duration // of the others' waits
}

func (o tenantsOutcome) String() string {
	return fmt.Sprintf("%d runs of %d jobs touched, %d hot and %d others done (%d others not), others wait %.2f s",
		o.runs, o.touched, o.hot, o.others, o.missing, o.p95.Seconds())
}

func (f tenants) simulate(t *testing.T) (o tenantsOutcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const procs, poll = 5, time.Second
		m := &remote{Store: store.NewMemory()}
		limit := outbound.Limit{Capacity: 1, LeakRate: f.rate}
		w := &world{rnd: rand.New(rand.NewPCG(3, 4)), procs: procs, workers: 10, poll: poll, work: 50 * time.Millisecond}
		var schedulers [procs]*outbound.Keyed[string]
		for i := range schedulers {
			schedulers[i] = &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
				return New(shared(t, m, tenant, limit), Config{PollInterval: poll}), nil
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
		var all []*job
		come := func(tenant int) {
			j := &job{id: len(all), tenant: tenant, came: time.Now()}
			all = append(all, j)
			if f.system == "asynq" {
				w.mu.Lock()
				w.ready = append(w.ready, j)
				w.mu.Unlock()
			} else {
				w.put(j, 0)
			}
		}
		if f.insert && f.hot > 0 {
			for i, r := range book(t, New(shared(t, m, "tenant0", limit), Config{PollInterval: poll}), f.hot) {
				j := &job{id: i, came: time.Now(), ticket: r.Ticket}
				all = append(all, j)
				w.putAt(j, r.At)
			}
		} else {
			for range f.hot {
				come(0)
			}
		}
		if f.system == "asynq" {
			w.asynq(ctx)
		} else {
			w.river(ctx)
		}
		rnd := rand.New(rand.NewPCG(5, 6))
		for begin := time.Now(); time.Since(begin) < f.length; {
			time.Sleep(time.Duration(rnd.ExpFloat64() * float64(100*time.Millisecond)))
			come(1 + rnd.IntN(99))
		}
		cancel()
		w.mu.Lock()
		runs, done := w.runs, w.done[:len(w.done):len(w.done)]
		w.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		o.runs = runs
		var waits []time.Duration // of the others
		for _, j := range done {
			if j.tenant == 0 {
				o.hot++
			} else {
				waits = append(waits, j.began.Sub(j.came))
			}
		}
		for _, j := range all {
			if j.runs > 0 {
				o.touched++
			}
			if j.tenant != 0 && j.began.IsZero() && time.Since(j.came) > time.Minute+10*time.Second {
				o.missing++
			}
		}
		slices.Sort(waits)
		o.others, o.p95 = len(waits), waits[len(waits)*95/100]
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
		{system: "asynq", rate: 1, hot: 2000, length: 320 * time.Second},
		{system: "river", rate: 1, hot: 2000, length: 320 * time.Second},
		{system: "asynq", rate: 20, hot: 20_000, length: 220 * time.Second},
		{system: "river", rate: 20, hot: 20_000, length: 220 * time.Second, insert: true},
	} {
		if raced && f.rate > 1 {
			continue
		}
		hot, calm := f, f
		calm.hot = 0
		o, without := hot.simulate(t), calm.simulate(t)
		slower := 200 * time.Millisecond
		if f.rate > 1 { // those that wait in workers are as many of the hot tenant's jobs as leave in a Lead
			slower = time.Second
		}
		quota := f.rate * f.length.Seconds()
		if o.p95 > without.p95+slower || o.missing > 0 || float64(o.hot) < 0.98*quota || float64(o.runs) > 1.05*float64(o.touched+o.hot+o.others) {
			t.Errorf("%v: %v\nwithout the hot one: %v", f, o, without)
		}
		t.Logf("%v: %v\nwithout the hot one: %v", f, o, without)
	}
}
