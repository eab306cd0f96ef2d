package asynqjobs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// workerEnv holds the order in the environment of a test binary that is to be a worker process.
const workerEnv = "DRIPFEED_ASYNQJOBS_WORKER"

// order is all that a worker process has to know.
type order struct {
	Redis, Queue, API string
	Rate              float64
}

// schedulerOf returns the Scheduler of a test's queue, as each of its processes has it.
func schedulerOf(rdb redis.UniversalClient, queue string, rate float64, c jobs.Config) *jobs.Scheduler {
	return jobs.New(outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), queue, outbound.PerSecond(rate))), c)
}

// quick is the Scheduler of a server that looks for due tasks every 200 ms.
var quick = jobs.Config{PollInterval: 200 * time.Millisecond, HeadStart: 300 * time.Millisecond}

// work is a worker process, until its input ends. Each task is a call of the API.
func work(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: o.Redis})
	defer rdb.Close()
	p := New(rdb, only(schedulerOf(rdb, o.Queue, o.Rate, quick)))
	p.Tickets = ticketless{p.Tickets, rdb, o.Queue}
	s := asynq.NewServerFromRedisClient(rdb, p.Config(asynq.Config{
		Concurrency: 10, Queues: map[string]int{o.Queue: 1}, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}))
	err := s.Start(p.Middleware(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.API, bytes.NewReader(t.Payload()))
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		return res.Body.Close()
	})))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	return err
}

// ticketless counts in Redis the runs that bring no ticket: each books a reservation.
type ticketless struct {
	Tickets
	rdb redis.UniversalClient
	key string
}

func (c ticketless) Get(ctx context.Context, task string) string {
	ticket := c.Tickets.Get(ctx, task)
	if ticket == "" {
		c.rdb.Incr(ctx, "booked:"+c.key)
	}
	return ticket
}

// api notes what workers call it for, and when.
type api struct {
	history outboundtest.History

	mu    sync.Mutex // protects tasks
	tasks map[string]int
}

func (a *api) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	a.history.Add(time.Now(), 1)
	task, _ := io.ReadAll(r.Body) // "" stands for a call that was cut
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tasks[string(task)]++
}

// check checks that the API has seen no more than its limit allows, as far as a busy machine lets
// anybody tell: for half a second processes, or calls under way, may stand still.
func (w *world) check(h *outboundtest.History, rate float64) {
	w.Helper()
	if err := h.Check(1, rate, rate/2); err != nil {
		w.Error(err)
	}
}

// start starts a worker process, and returns a function that kills it.
func (w *world) start(o order) (kill func()) {
	w.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		w.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		w.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // which ends with this process
		w.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it says that the process was killed
	})
	w.Cleanup(kill)
	return kill
}

// The tasks that were with the process when it was killed may book another reservation, and nobody else: those that had been
// rescheduled have their tickets.
func TestCrash_KilledWorkerLosesReservationsOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const tasks, rate = 40, 5 // slow, so that a busy machine finds them under way
	a := &api{tasks: map[string]int{}}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	o := order{w.addr, w.queue, server.URL, rate}
	for i := range tasks {
		if _, err := w.client.Enqueue(asynq.NewTask("mail", []byte(strconv.Itoa(i))), asynq.Queue(w.queue), asynq.MaxRetry(3)); err != nil {
			t.Fatal(err)
		}
	}
	kill := w.start(o)
	w.await("the first calls", func() bool {
		b := w.books()
		return a.history.Len() >= 8 && b.Retry > 0 && b.Active > 1
	})
	kill()
	// Asynq hands out the tasks of a process that is gone a minute later. Here that minute is over.
	orphans := w.rdb.ZRange(t.Context(), "asynq:{"+w.queue+"}:lease", 0, -1).Val()
	for _, id := range orphans {
		w.rdb.ZAdd(t.Context(), "asynq:{"+w.queue+"}:lease", redis.Z{Score: float64(time.Now().Add(-time.Minute).Unix()), Member: id})
	}
	w.start(o)
	w.done()
	b := w.books()
	booked, err := w.rdb.Get(t.Context(), "booked:"+w.queue).Int()
	if err != nil || booked < tasks || booked > tasks+len(orphans) {
		t.Errorf("%d places for %d tasks, of which %d were with the process; %v", booked, tasks, len(orphans), err)
	}
	t.Logf("%d tasks were with the process, %d calls and %d places in all", len(orphans), a.history.Len(), booked)
	if b.Archived != 0 || b.FailedTotal > len(orphans) {
		t.Errorf("%d archived, %d failed, of %d with the process", b.Archived, b.FailedTotal, len(orphans))
	}
	if n := a.history.Len(); n > tasks+len(orphans) { // who was killed after the call calls again
		t.Errorf("%d calls for %d tasks, of which %d were with the process", n, tasks, len(orphans))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range tasks {
		if a.tasks[fmt.Sprint(i)] == 0 {
			t.Errorf("task %d has not run", i)
		}
	}
	w.check(&a.history, rate)
}
