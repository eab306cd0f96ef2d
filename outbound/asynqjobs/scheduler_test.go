package asynqjobs

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
	"github.com/dripfeed/dripfeed/transport"
)

// runs counts the runs of a handler.
func runs(n *atomic.Int64, h asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		n.Add(1)
		return h.ProcessTask(ctx, t)
	})
}

// Two servers stand for two processes. Some tasks have one try only, some were booked, and some are
// not paced.
func TestPacer_ServersShareARate(t *testing.T) {
	t.Parallel()
	serversShareARate(t, newWorld(t))
}

// The keys of asynq, of tickets and of the bucket are on any of the cluster's nodes.
func TestPacer_ServersOnAClusterShareARate(t *testing.T) {
	t.Parallel()
	serversShareARate(t, newWorldOn(t, redistest.SharedCluster(t).Client(t)))
}

func serversShareARate(t *testing.T, w *world) {
	const paced, free, rate = 60, 10, 20
	var history outboundtest.History
	var n, others atomic.Int64
	var pacer *Pacer
	for range 2 {
		// So the gate refuses nobody, as long as no process stands still for two seconds.
		l := schedulerOf(w.rdb, w.queue, rate, jobs.Config{PollInterval: 2 * time.Second, HeadStart: time.Second})
		pacer = New(w.rdb, func(t *asynq.Task) (outbound.Limiter, outbound.Cost) {
			if t.Type() == "free" {
				return nil, outbound.Cost{}
			}
			return l, outbound.Cost{1}
		})
		mux := asynq.NewServeMux()
		mux.Use(pacer.Middleware)
		mux.HandleFunc("free", func(context.Context, *asynq.Task) error { others.Add(1); return nil })
		mux.HandleFunc("mail", func(context.Context, *asynq.Task) error { history.Add(time.Now(), 1); return nil })
		w.serve(pacer.Config(w.config()), runs(&n, mux))
	}
	for i := range paced {
		task := asynq.NewTask("mail", nil, asynq.Queue(w.queue), asynq.MaxRetry(i%2))
		if i%3 == 0 {
			if _, err := pacer.Enqueue(t.Context(), w.client, task); err != nil {
				t.Fatal(err)
			}
		} else if _, err := w.client.Enqueue(task); err != nil {
			t.Fatal(err)
		}
		if i%(paced/free) == 0 {
			if _, err := w.client.Enqueue(asynq.NewTask("free", nil, asynq.Queue(w.queue))); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.done()
	w.clean()
	if b := w.books(); b.ProcessedTotal != paced+free || history.Len() != paced || others.Load() != free {
		t.Errorf("%d processed, %d calls and %d others", b.ProcessedTotal, history.Len(), others.Load())
	}
	t.Logf("%d runs of %d tasks", n.Load(), paced+free)
	if n.Load() > 3*paced+free {
		t.Errorf("%d runs of %d tasks", n.Load(), paced)
	}
	if err := history.Check(1, rate, rate/2); err != nil { // on a busy machine a process may stand still for half a second
		t.Error(err)
	}
}

// spy keeps tickets, and tells of them.
type spy struct {
	Tickets
	missing func(context.Context) // if not nil, a task has no ticket

	mu       sync.Mutex // protects the fields below
	got, put []string
}

func (s *spy) Get(ctx context.Context, task string) string {
	ticket := s.Tickets.Get(ctx, task)
	if ticket == "" && s.missing != nil {
		s.missing(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, ticket)
	return ticket
}

func (s *spy) Put(ctx context.Context, task, ticket string, ttl time.Duration) error {
	err := s.Tickets.Put(ctx, task, ticket, ttl)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put = append(s.put, ticket)
	return err
}

func TestPacer_TaskRunByHandKeepsItsReservation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := schedulerOf(w.rdb, w.queue, 0.001, quick)
	if _, err := l.Book(t.Context(), outbound.Cost{1}); err != nil { // the next reservation is in 1 000 s
		t.Fatal(err)
	}
	p := New(w.rdb, only(l))
	s := &spy{Tickets: p.Tickets}
	p.Tickets = s
	w.serve(p.Config(w.config()), p.Middleware(asynq.HandlerFunc(fails)))
	info := w.enqueue()
	put := func(n int) func() bool {
		return func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.put) == n && w.info(info.ID).State == asynq.TaskStateRetry
		}
	}
	w.await("the task has its place", put(1))
	if err := w.inspector.RunTask(w.queue, info.ID); err != nil {
		t.Fatal(err)
	}
	w.await("the task is back", put(2))
	if s.put[0] == "" || s.put[1] != s.put[0] || s.got[1] != s.put[0] {
		t.Errorf("put %q, got %q", s.put, s.got)
	}
	if in := time.Until(w.info(info.ID).NextProcessAt); in < 500*time.Second || in > 1100*time.Second {
		t.Errorf("back in %v", in)
	}
	w.clean()
}

// The store of the bucket is away, and not that of asynq.
func TestPacer_UnavailableStoreReschedules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	away := redistest.Start(t, "--maxmemory-policy", "noeviction")
	away.Kill(t)
	var n, calls atomic.Int64
	p := New(w.rdb, only(schedulerOf(away.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }), w.queue, 20, quick)))
	w.serve(p.Config(w.config()), runs(&n, p.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		calls.Add(1)
		return nil
	}))))
	w.enqueue(asynq.MaxRetry(1))
	last := w.enqueue(asynq.MaxRetry(0)) // waits in its worker
	// What is booked without the store has no reservation, and is enqueued.
	if _, err := p.Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil), asynq.Queue(w.queue), asynq.MaxRetry(1)); err != nil {
		t.Error(err)
	}
	w.await("tasks have gone back", func() bool { return w.books().Retry == 2 })
	if got := w.info(last.ID).State; got != asynq.TaskStateActive {
		t.Errorf("the one on its last try is %v", got)
	}
	away.Restart(t)
	w.done()
	w.clean()
	if calls.Load() != 3 {
		t.Errorf("%d calls", calls.Load())
	}
}

// The API holds all, and the task that it has refused is the only one that has failed.
func TestPacer_HoldReschedulesWithoutFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const tasks, hold = 10, 3 * time.Second
	var mu sync.Mutex
	var refused time.Time
	early, calls := 0, 0
	p := New(w.rdb, only(schedulerOf(w.rdb, w.queue, 20, quick)))
	c := w.config()
	c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
	w.serve(p.Config(c), p.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		mu.Lock()
		defer mu.Unlock()
		calls++
		if refused.IsZero() {
			refused = time.Now()
			outbound.PermitFrom(ctx).Refused(hold)
			return errBad
		}
		if since := time.Since(refused); since > time.Second && since < hold { // those that were under way come at once
			early++
		}
		return nil
	})))
	for range tasks {
		w.enqueue(asynq.MaxRetry(1))
	}
	w.done()
	if b := w.books(); b.FailedTotal != 1 || b.Archived != 0 || w.reported.Load() != 1 {
		t.Errorf("%d failed, %d archived, %d reported", b.FailedTotal, b.Archived, w.reported.Load())
	}
	if early != 0 || calls != tasks+1 {
		t.Errorf("%d calls, %d of them during the hold", calls, early)
	}
}

func TestPacer_ClosedQueueReschedules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := schedulerOf(w.rdb, w.queue, 0.01, quick)
	if _, err := l.Queue().Acquire(t.Context(), outbound.Cost{1}); err != nil { // the next one goes in 100 s
		t.Fatal(err)
	}
	l.Queue().Close()
	p := New(w.rdb, only(l))
	w.serve(p.Config(w.config()), p.Middleware(asynq.HandlerFunc(fails)))
	info := w.enqueue()
	w.await("the task is put back", func() bool { return w.info(info.ID).State == asynq.TaskStateRetry })
	w.clean()
}

// A Pacer and a Transport around one bucket are two limiters: the doc comment of the package says
// so.
func TestPacer_CallIsChargedOncePerLimiter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pacer, transport bool
		want             float64
	}{"pacer": {true, false, 1}, "transport": {false, true, 1}, "both": {true, true, 1}} {
		bucket := outbound.Must(outbound.NewBucket(name, outbound.Limit{Capacity: 10, LeakRate: 1e-6}))
		var l outbound.Limiter
		if c.pacer {
			l = bucket
		}
		client := &http.Client{Transport: &outboundtest.API{}}
		if c.transport {
			client.Transport = &transport.Transport{Base: client.Transport, Limiter: queue.New(bucket, queue.Config{})}
		}
		err := (&Pacer{Limiter: only(l)}).Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", nil)
			if err != nil {
				return err
			}
			res, err := client.Do(r)
			if err != nil {
				return err
			}
			return res.Body.Close()
		})).ProcessTask(t.Context(), asynq.NewTask("mail", nil))
		state, stateErr := bucket.State(t.Context())
		if err = errors.Join(err, stateErr); err != nil || math.Round(state.Level) != c.want {
			t.Errorf("%s: charged %v, want %v; %v", name, state.Level, c.want, err)
		}
	}
}

// counter counts the commands of a Redis client.
type counter struct {
	mu    sync.Mutex // protects names
	names []string
}

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.mu.Lock()
		c.names = append(c.names, cmd.Name())
		c.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next // with which a connection begins
}

func TestPacer_RunIsAGetRescheduleASet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := new(counter)
	own := redis.NewClient(&redis.Options{Addr: w.addr})
	defer own.Close()
	own.AddHook(c)
	mail := &script{answers: []error{later(time.Millisecond, "x")}}
	p := New(own, func(t *asynq.Task) (outbound.Limiter, outbound.Cost) {
		if t.Type() == "free" { // which costs nothing
			return nil, outbound.Cost{}
		}
		return mail, outbound.Cost{1}
	})
	w.serve(p.Config(w.config()), p.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })))
	w.enqueue()
	if _, err := w.client.Enqueue(asynq.NewTask("free", nil), asynq.Queue(w.queue)); err != nil {
		t.Fatal(err)
	}
	w.done()
	c.mu.Lock()
	defer c.mu.Unlock()
	// Other commands begin a connection.
	if got := slices.DeleteFunc(c.names, func(name string) bool { return name != "get" && name != "set" }); strings.Join(got, " ") != "get set get" {
		t.Errorf("commands %v", got)
	}
}
