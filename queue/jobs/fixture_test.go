package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var (
	bg        = context.Background()
	one       = outbound.Cost{1}
	perSecond = []outbound.Limit{{Capacity: 1, LeakRate: 1}}
)

// long makes simulations longer than in CI.
var long = os.Getenv("DRIPFEED_LONG") != ""

// raced makes simulations fewer: they take ten times as long under the race detector.
var raced = func() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// remote is a store that takes a millisecond to reach, and another one back.
type remote struct {
	store.Store
	trips  atomic.Int64
	mu     sync.Mutex
	before func(ctx context.Context, key string, op *store.Op) error // may fail a request, or hold it up
}

// set sets what is called before each request, or nothing.
func (s *remote) set(before func(ctx context.Context, key string, op *store.Op) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

// unavailable fails a request.
func unavailable(context.Context, string, *store.Op) error {
	return fmt.Errorf("%w: down", store.ErrUnavailable)
}

// hang holds a request up until its ctx ends.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s *remote) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	time.Sleep(time.Millisecond)
	s.trips.Add(1)
	s.mu.Lock()
	before := s.before
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, key, op); err != nil {
			return store.Reply{}, err
		}
	}
	r, err := s.Store.Update(ctx, key, op)
	r.When = time.Now()
	time.Sleep(time.Millisecond)
	r.Received = time.Now()
	return r, err
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// noError fails the test if there is an error. Any goroutine may call it.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func shared(s store.Store, key string, limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewSharedBucket(s, key, limits...))
}

func own(limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewBucket("test", limits...))
}

// bothWays calls f with a maker of Schedulers, which are those of several processes with a store, or
// else those of one.
func bothWays(t *testing.T, c Config, limits []outbound.Limit, f func(t *testing.T, scheduler func() *Scheduler)) {
	t.Helper()
	t.Run("local", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := own(limits...)
			f(t, func() *Scheduler { return New(b, c) })
			time.Sleep(time.Minute)
		})
	})
	t.Run("shared", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := store.NewMemory()
			f(t, func() *Scheduler { return New(shared(store, "api", limits...), c) })
			time.Sleep(time.Minute)
		})
	})
}

// book books n reservations and returns them.
func book(t testing.TB, b Booker, n int) []Run {
	t.Helper()
	runs, err := b.Book(bg, slices.Repeat([]outbound.Cost{one}, n)...)
	if err != nil || len(runs) != n {
		t.Fatalf("%d reservations, %v", len(runs), err)
	}
	return runs
}

// admitted fails the test unless the job is admitted.
func admitted(t testing.TB, l outbound.Limiter, ticket string, c outbound.Cost) {
	t.Helper()
	p, err := l.Acquire(WithTicket(bg, ticket), c)
	if err != nil {
		t.Fatalf("the job is not admitted: %v", err)
	}
	p.Done()
}

// rescheduled returns the Later with which the job is rescheduled.
func rescheduled(t testing.TB, l outbound.Limiter, ticket string, c outbound.Cost) *Later {
	t.Helper()
	_, err := l.Acquire(WithTicket(bg, ticket), c)
	var later *Later
	if !errors.As(err, &later) {
		t.Fatalf("the job is not rescheduled: %v", err)
	}
	return later
}

func near(a, b time.Duration) bool { return (a - b).Abs() <= 5*time.Millisecond }

// punctual is a job system that runs each job at the very time at which it is to come back.
type punctual struct {
	t       testing.TB
	begin   time.Time // when the first job came
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

// startAll starts jobs with these tickets, named by their numbers, in the Schedulers by turns.
func (s *punctual) startAll(all []Run, in ...*Scheduler) {
	for i, r := range all {
		s.start(fmt.Sprint(i), in[i%len(in)], r.Ticket, one)
	}
}

func (s *punctual) startIn(d time.Duration, name string, l outbound.Limiter, ticket string, c outbound.Cost) {
	if s.runs == nil {
		s.begin, s.runs = time.Now(), map[string]int{}
	}
	s.jobs.Go(func() {
		time.Sleep(d)
		for {
			s.mu.Lock()
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

// end waits for the end of all jobs. It checks that they take no longer than within since the first
// came, and that no job runs more often than most.
func (s *punctual) end(within time.Duration, most int) (took time.Duration) {
	s.t.Helper()
	s.jobs.Wait()
	if took = time.Since(s.begin); took > within || s.most() > most {
		s.t.Errorf("the jobs take %v, %d runs, and up to %d of one; want %v and %d", took, s.sum(), s.most(), within, most)
	}
	return took
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

// check checks the limit, for calls that may be late by 12 ms.
func (s *punctual) check(l outbound.Limit) {
	s.t.Helper()
	noError(s.t, s.history.Check(l.Capacity, l.LeakRate, 0.012*l.LeakRate))
}
