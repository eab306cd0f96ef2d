package asynqjobs

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// The Pacer relies on what asynq does here. If it fails after an upgrade, look whether the Pacer is still right.
func TestAsynq_DoesWhatThePacerReliesOn(t *testing.T) {
	t.Parallel()
	onRedis(t, "A task on its last try may wait in its worker for long, and must not be handed out to another one meanwhile", func(t *testing.T, w *world) {
		info := w.enqueue()
		end := make(chan bool)
		w.serve(w.config(), asynq.HandlerFunc(func(context.Context, *asynq.Task) error { <-end; return nil }))
		t.Cleanup(func() { close(end) }) // before the server's shutdown
		lease := func() float64 { return w.rdb.ZScore(t.Context(), "asynq:{"+w.queue+"}:lease", info.ID).Val() }
		first := 0.0
		w.await("the task has a lease", func() bool { first = lease(); return first > 0 })
		w.await("the lease is longer", func() bool { return lease() > first })
	})
	onRedis(t, "Asynq archives the last try of a dead worker, and no Pacer can prevent it: the package's documentation says so", func(t *testing.T, w *world) {
		last, other := w.enqueue(asynq.MaxRetry(0)), w.enqueue(asynq.MaxRetry(1))
		end, begun := make(chan bool), make(chan bool, 3)
		block := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { begun <- true; <-end; return nil })
		w.serve(w.config(), block)
		t.Cleanup(func() { close(end) }) // before the servers' shutdown
		<-begun
		<-begun
		w.endLeases(last.ID, other.ID)
		c := w.config()
		c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
		w.serve(c, block) // looks for such tasks when it begins
		w.awaitState(last.ID, asynq.TaskStateArchived)
		w.awaitState(other.ID, asynq.TaskStateRetry)
	})
}
