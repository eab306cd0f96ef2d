package asynqjobs

import (
	"context"
	"errors"
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
	tickets     *jobtest.Tickets // of all Pacers
	reported    atomic.Int64     // calls of the ErrorHandler
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

// onRedis runs a scenario in a world of its own, next to the others.
func onRedis(t *testing.T, name string, scenario func(t *testing.T, w *world)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		scenario(t, newWorld(t))
	})
}

func newWorldOn(t *testing.T, rdb redis.UniversalClient) *world {
	w := &world{T: t, queue: fmt.Sprintf("q%x", rand.Uint64()), rdb: rdb, tickets: &jobtest.Tickets{In: New(rdb, nil).Tickets}}
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

// pacer returns a Pacer that paces each task by this limiter.
func (w *world) pacer(l outbound.Limiter) *Pacer {
	return &Pacer{Limiter: only(l), Tickets: w.tickets}
}

// pace runs a server whose handler a Pacer with this limiter paces.
func (w *world) pace(l outbound.Limiter, h asynq.HandlerFunc) {
	w.Helper()
	p := w.pacer(l)
	w.serve(p.Config(w.config()), p.Middleware(h))
}

func (w *world) enqueue(o ...asynq.Option) *asynq.TaskInfo {
	return w.enqueueTask(asynq.NewTask("mail", nil), o...)
}

func (w *world) enqueueTask(t *asynq.Task, o ...asynq.Option) *asynq.TaskInfo {
	return jobtest.Must(w.client.Enqueue(t, append(o, asynq.Queue(w.queue))...))
}

func (w *world) info(id string) *asynq.TaskInfo {
	return jobtest.Must(w.inspector.GetTaskInfo(w.queue, id))
}

func (w *world) stats() *asynq.QueueInfo { return jobtest.Must(w.inspector.GetQueueInfo(w.queue)) }

// ticket returns the kept ticket of a task, and for how long it is kept.
func (w *world) ticket(id string) (string, time.Duration) {
	key := prefix + w.queue + "/" + id
	return w.rdb.Get(w.Context(), key).Val(), w.rdb.PTTL(w.Context(), key).Val()
}

// endLeases has the leases of tasks end a minute ago, as those of a dead process do.
func (w *world) endLeases(ids ...string) {
	for _, id := range ids {
		w.rdb.ZAdd(w.Context(), "asynq:{"+w.queue+"}:lease", redis.Z{Score: float64(time.Now().Add(-time.Minute).Unix()), Member: id})
	}
}

// await waits until something is so. The time only ends a test that hangs.
func (w *world) await(what string, so func() bool) {
	w.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("not within a minute: %s; %+v", what, w.stats())
		}
	}
}

// awaitState waits until a task is in a state, and returns it.
func (w *world) awaitState(id string, s asynq.TaskState) (info *asynq.TaskInfo) {
	w.Helper()
	w.await("the task is "+s.String(), func() bool { info = w.info(id); return info.State == s })
	return info
}

// done waits until asynq has nothing left to do.
func (w *world) done() {
	w.Helper()
	w.await("all tasks are done", func() bool { b := w.stats(); return b.Size == b.Archived+b.Completed })
}

// clean checks that no task has failed by asynq's counts, and that its ErrorHandler was not called.
func (w *world) clean() {
	w.Helper()
	if b := w.stats(); b.FailedTotal != 0 || b.Archived != 0 || w.reported.Load() != 0 {
		w.Errorf("%d failed, %d archived, %d reported: want none", b.FailedTotal, b.Archived, w.reported.Load())
	}
}

var errBad = errors.New("bad")

func fails(context.Context, *asynq.Task) error    { return errBad }
func succeeds(context.Context, *asynq.Task) error { return nil }

func only(l outbound.Limiter) func(*asynq.Task) (outbound.Limiter, outbound.Cost) {
	return func(*asynq.Task) (outbound.Limiter, outbound.Cost) { return l, outbound.Cost{1} }
}

// fake is a limiter with an answer to each Acquire, and one to Book.
type fake struct {
	acquire func(ctx context.Context, n int) error // the n-th time, from 1; if nil, it admits
	runs    []jobs.Run
	err     error

	mu     sync.Mutex // protects the fields below
	calls  []time.Time
	booked []outbound.Cost
}

// inTurn is a limiter that returns the errors one after the other, and then admits.
func inTurn(errs ...error) *fake { return &fake{acquire: jobtest.InTurn(errs...)} }

func (f *fake) Acquire(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
	f.mu.Lock()
	f.calls = append(f.calls, time.Now())
	n := len(f.calls)
	f.mu.Unlock()
	if f.acquire == nil {
		return outbound.Permit{}, nil
	}
	return outbound.Permit{}, f.acquire(ctx, n)
}

// seen returns the times of each Acquire.
func (f *fake) seen() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *fake) Book(_ context.Context, costs ...outbound.Cost) ([]jobs.Run, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.booked = append(f.booked, costs...)
	return f.runs, f.err
}
