package asynqjobs

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// The tests in this file tell what asynq does, without a Pacer. The Pacer relies on it: where one
// fails after an upgrade, look whether the Pacer is still right.

var errBad = errors.New("bad")

func fails(context.Context, *asynq.Task) error { return errBad }

func TestAsynq_ArchivesALastTryThatIsNoFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	info := w.enqueue(asynq.MaxRetry(0))
	c := w.config()
	c.IsFailure = func(error) bool { return false }
	w.serve(c, asynq.HandlerFunc(fails))
	w.await("the task is archived", func() bool { return w.info(info.ID).State == asynq.TaskStateArchived })
}

func TestAsynq_CountsNoRetryWithoutFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	info := w.enqueue(asynq.MaxRetry(1))
	c := w.config()
	c.IsFailure = func(error) bool { return false }
	c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
	w.serve(c, asynq.HandlerFunc(fails))
	w.await("the task is put back", func() bool { return w.info(info.ID).State == asynq.TaskStateRetry })
	if got := w.info(info.ID); got.Retried != 0 || got.LastErr != "bad" {
		t.Errorf("retried %d times, last error %q", got.Retried, got.LastErr)
	}
	if b := w.books(); b.ProcessedTotal != 0 || b.FailedTotal != 0 {
		t.Errorf("%d processed, %d failed", b.ProcessedTotal, b.FailedTotal)
	}
	if n := w.reported.Load(); n != 1 {
		t.Errorf("reported %d times: if asynq no longer does, Config need not wrap the ErrorHandler", n)
	}
}

// A time just before the end of a second becomes that second's begin, if the machine is not slower
// than that.
func TestAsynq_CutsTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	if got := w.info(w.enqueue(asynq.ProcessAt(at.Add(999 * time.Millisecond))).ID).NextProcessAt; !got.Equal(at) {
		t.Errorf("ProcessAt %v became %v", at, got)
	}

	var mu sync.Mutex
	wanted := map[string]time.Time{}
	c := w.config()
	c.IsFailure = func(error) bool { return false }
	c.RetryDelayFunc = func(_ int, _ error, task *asynq.Task) time.Duration {
		now := time.Now()
		d := time.Until(at.Add(10 * time.Millisecond))
		mu.Lock()
		defer mu.Unlock()
		wanted[string(task.Payload())] = now.Add(d)
		return d
	}
	ids := map[string]string{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		info, err := w.client.Enqueue(asynq.NewTask("mail", []byte(name)), asynq.Queue(w.queue))
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = info.ID
	}
	w.serve(c, asynq.HandlerFunc(fails))
	w.await("all are put back", func() bool { return w.books().Retry == len(ids) })
	cut := 0
	for name, id := range ids {
		if w.info(id).NextProcessAt.Before(wanted[name]) {
			cut++
		}
	}
	if cut == 0 {
		t.Error("asynq no longer cuts the time of a retry: Config need not round up")
	}
}

func TestAsynq_UniqueLockCountsFromProcessAt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(asynq.Unique(time.Minute), asynq.ProcessIn(time.Hour))
	keys, err := w.rdb.Keys(t.Context(), "asynq:{"+w.queue+"}:unique:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	if ttl := w.rdb.PTTL(t.Context(), keys[0]).Val(); ttl < 50*time.Minute {
		t.Errorf("the lock ends in %v", ttl)
	}
}

func TestAsynq_ShutdownPutsTasksToTheHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.enqueue(asynq.MaxRetry(0))
	c := w.config()
	c.Concurrency, c.ShutdownTimeout = 1, 50*time.Millisecond
	begun := make(chan error, 1)
	s := w.serve(c, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		begun <- ctx.Err()
		<-ctx.Done() // asynq ends it when it has reschedule the task
		return ctx.Err()
	}))
	<-begun
	w.enqueue()
	s.Shutdown()
	pending, err := w.inspector.ListPendingTasks(w.queue)
	if err != nil || len(pending) != 2 || pending[0].ID != first.ID || pending[0].Retried != 0 {
		t.Errorf("pending: %v, %v", pending, err)
	}
	if b := w.books(); b.ProcessedTotal != 0 || b.Archived != 0 || w.reported.Load() != 0 {
		t.Errorf("%+v, %d reported", b, w.reported.Load())
	}
}

// A handler learns from its ctx what a Pacer goes by, also after retries.
func TestAsynq_HandlerKnowsTaskAndTry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	info := w.enqueue(asynq.MaxRetry(1))
	c := w.config()
	c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
	type try struct {
		id, queue string
		last      bool
	}
	tries := make(chan try, 3)
	w.serve(c, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		queue, _ := asynq.GetQueueName(ctx)
		tries <- try{id, queue, lastTry(ctx)}
		return errBad
	}))
	for _, last := range []bool{false, true} {
		if got := <-tries; got != (try{info.ID, w.queue, last}) {
			t.Errorf("%+v, want %s, %s, %v", got, info.ID, w.queue, last)
		}
	}
}

// A task on its last try may wait in its worker for long, and must not be handed out to another one
// meanwhile.
func TestAsynq_KeepsTheLeaseOfAWaitingTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	info := w.enqueue()
	end := make(chan bool)
	w.serve(w.config(), asynq.HandlerFunc(func(context.Context, *asynq.Task) error { <-end; return nil }))
	t.Cleanup(func() { close(end) }) // before the server's shutdown
	lease := func() float64 { return w.rdb.ZScore(t.Context(), "asynq:{"+w.queue+"}:lease", info.ID).Val() }
	first := 0.0
	w.await("the task has a lease", func() bool { first = lease(); return first > 0 })
	w.await("the lease is longer", func() bool { return lease() > first })
}

// A Pacer can do nothing about that: its documentation says so.
func TestAsynq_ArchivesTheLastTryOfADeadWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	last, other := w.enqueue(asynq.MaxRetry(0)), w.enqueue(asynq.MaxRetry(1))
	end := make(chan bool)
	begun := make(chan bool, 3)
	block := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { begun <- true; <-end; return nil })
	w.serve(w.config(), block)
	t.Cleanup(func() { close(end) }) // before the servers' shutdown
	<-begun
	<-begun
	w.endLeases(last.ID, other.ID)
	c := w.config()
	c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
	w.serve(c, block) // looks for such tasks when it begins
	w.await("both were found", func() bool {
		return w.info(last.ID).State == asynq.TaskStateArchived && w.info(other.ID).State == asynq.TaskStateRetry
	})
}
