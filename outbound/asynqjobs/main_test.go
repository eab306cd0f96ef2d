package asynqjobs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

func TestMain(m *testing.M) {
	jobtest.Worker(work)
	os.Exit(m.Run())
}

// world is an asynq with a queue of the test's own, on a real Redis server.
type world struct {
	*testing.T
	addr, queue string
	rdb         redis.UniversalClient
	client      *asynq.Client
	inspector   *asynq.Inspector
	reported    atomic.Int64 // calls of the ErrorHandler
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := redistest.Shared(t)
	if !s.Real() {
		t.Skip("asynq needs a real redis-server")
	}
	w := newWorldOn(t, s.Client(t))
	w.addr = s.Addr()
	return w
}

func newWorldOn(t *testing.T, rdb redis.UniversalClient) *world {
	w := &world{T: t, queue: fmt.Sprintf("q%x", rand.Uint64()), rdb: rdb}
	w.client = asynq.NewClientFromRedisClient(w.rdb)
	w.inspector = asynq.NewInspectorFromRedisClient(w.rdb)
	return w
}

// configOf is the config of a server that looks for tasks often, and retries a failed one immediately.
func configOf(queue string) asynq.Config {
	return asynq.Config{
		Concurrency: 10, Queues: map[string]int{queue: 1}, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 50 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}
}

// config is configOf the test's queue, and counts the calls of the ErrorHandler.
func (w *world) config() asynq.Config {
	c := configOf(w.queue)
	c.ErrorHandler = asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { w.reported.Add(1) })
	return c
}

// endLeases has the leases of tasks end a minute ago, as those of a dead process do.
func (w *world) endLeases(ids ...string) {
	for _, id := range ids {
		w.rdb.ZAdd(w.Context(), "asynq:{"+w.queue+"}:lease", redis.Z{Score: float64(time.Now().Add(-time.Minute).Unix()), Member: id})
	}
}

// schedulerOf returns the Scheduler of a test's queue, as each of its processes has it.
func schedulerOf(rdb redis.UniversalClient, queue string, rate float64, c jobs.Config) *jobs.Scheduler {
	return jobs.New(outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), queue, outbound.PerSecond(rate))), c)
}

// quick is the Scheduler of a server that looks for due tasks every 200 ms.
var quick = jobs.Config{PollInterval: 200 * time.Millisecond, HeadStart: 300 * time.Millisecond}

// serve runs a server until the test ends.
func (w *world) serve(c asynq.Config, h asynq.Handler) *asynq.Server {
	w.Helper()
	s := asynq.NewServerFromRedisClient(w.rdb, c)
	if err := s.Start(h); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(s.Shutdown)
	return s
}

// pace runs a server whose handler a Pacer with this limiter paces.
func (w *world) pace(l outbound.Limiter, h asynq.HandlerFunc) *asynq.Server {
	w.Helper()
	p := New(w.rdb, only(l))
	return w.serve(p.Config(w.config()), p.Middleware(h))
}

func (w *world) enqueue(o ...asynq.Option) *asynq.TaskInfo {
	w.Helper()
	info, err := w.client.Enqueue(asynq.NewTask("mail", []byte("{}")), append(o, asynq.Queue(w.queue))...)
	if err != nil {
		w.Fatal(err)
	}
	return info
}

func (w *world) info(id string) *asynq.TaskInfo {
	w.Helper()
	info, err := w.inspector.GetTaskInfo(w.queue, id)
	if err != nil {
		w.Fatal(err)
	}
	return info
}

func (w *world) books() *asynq.QueueInfo {
	w.Helper()
	info, err := w.inspector.GetQueueInfo(w.queue)
	if err != nil {
		w.Fatal(err)
	}
	return info
}

// await waits until something is so. The time only ends a test that hangs.
func (w *world) await(what string, so func() bool) {
	w.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("not within a minute: %s; %+v", what, w.books())
		}
	}
}

// done waits until asynq has nothing left to do.
func (w *world) done() {
	w.Helper()
	w.await("all tasks are done", func() bool { b := w.books(); return b.Size == b.Archived+b.Completed })
}

// clean checks that no task has failed by asynq's books, and that its ErrorHandler was not called.
func (w *world) clean() {
	w.Helper()
	if b := w.books(); b.FailedTotal != 0 || b.Archived != 0 || w.reported.Load() != 0 {
		w.Errorf("%d failed, %d archived, %d reported: want none", b.FailedTotal, b.Archived, w.reported.Load())
	}
}

func only(l outbound.Limiter) func(*asynq.Task) (outbound.Limiter, outbound.Cost) {
	return func(*asynq.Task) (outbound.Limiter, outbound.Cost) { return l, outbound.Cost{1} }
}

// script is a limiter that gives one answer after another, and admits from then on.
type script struct {
	answers []error

	mu    sync.Mutex // protects the fields below
	calls []time.Time
}

func (s *script) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, time.Now())
	if n := len(s.calls); n <= len(s.answers) {
		return outbound.Permit{}, s.answers[n-1]
	}
	return outbound.Permit{}, nil
}

// seen returns when the limiter was asked.
func (s *script) seen() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func later(in time.Duration, ticket string) error { return &jobs.Later{In: in, Ticket: ticket} }
