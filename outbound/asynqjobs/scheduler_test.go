package asynqjobs

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Two servers stand for two processes, and share a rate. Some tasks have one try only, some were
// booked, and some are not paced. On a cluster the keys of asynq, tickets and bucket are on any node.
func TestScheduler_ServersShareARate(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *world{
		"one Redis server": newWorld,
		"a Redis Cluster":  func(t *testing.T) *world { return newWorldOn(t, redistest.SharedCluster(t).Client(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const paced, free, rate = 60, 10, 20
			w := start(t)
			var history outboundtest.History
			var runs, others atomic.Int64
			var p *Pacer
			for range 2 {
				// So the Scheduler refuses no task unless a process stands still for two seconds.
				l := schedulerOf(w.rdb, w.queue, rate, jobs.Config{PollInterval: 2 * time.Second, HeadStart: time.Second})
				p = New(w.rdb, func(t *asynq.Task) (outbound.Limiter, outbound.Cost) {
					if t.Type() == "free" {
						return nil, outbound.Cost{}
					}
					return l, outbound.Cost{1}
				})
				mux := asynq.NewServeMux()
				mux.Use(func(next asynq.Handler) asynq.Handler {
					return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
						runs.Add(1)
						return next.ProcessTask(ctx, t)
					})
				}, p.Middleware)
				mux.HandleFunc("free", func(context.Context, *asynq.Task) error { others.Add(1); return nil })
				mux.HandleFunc("mail", func(context.Context, *asynq.Task) error { history.Add(time.Now(), 1); return nil })
				w.serve(p.Config(w.config()), mux)
			}
			for i := range paced {
				task := asynq.NewTask("mail", nil, asynq.Queue(w.queue), asynq.MaxRetry(i%2))
				if i%3 != 0 {
					w.enqueueTask(task)
				} else {
					jobtest.Must(p.Enqueue(t.Context(), w.client, task))
				}
				if i%(paced/free) == 0 {
					w.enqueueTask(asynq.NewTask("free", nil))
				}
			}
			w.done()
			w.clean()
			if b := w.stats(); b.ProcessedTotal != paced+free || history.Len() != paced || others.Load() != free {
				t.Errorf("%d processed, %d calls and %d others", b.ProcessedTotal, history.Len(), others.Load())
			}
			if runs.Load() > 3*paced+free {
				t.Errorf("%d runs of %d tasks", runs.Load(), paced)
			}
			if err := history.Check(1, rate, rate/2); err != nil { // on a busy machine a process may stand still for half a second
				t.Error(err)
			}
		})
	}
}

// A 429 holds all tasks, and only the refused task has failed.
func TestScheduler_RefusalHoldsAllTasks(t *testing.T) {
	t.Parallel()
	const tasks = 10
	w, refusal := newWorld(t), &jobtest.Refusal{Nth: 1, Hold: 3 * time.Second, Grace: time.Second} // admitted tasks come within a second
	w.pace(schedulerOf(w.rdb, w.queue, 20, quick), func(ctx context.Context, _ *asynq.Task) error { return refusal.Call(ctx) })
	for range tasks {
		w.enqueue(asynq.MaxRetry(1))
	}
	w.done()
	if b := w.stats(); b.FailedTotal != 1 || b.Archived != 0 || w.reported.Load() != 1 {
		t.Errorf("%d failed, %d archived, %d reported", b.FailedTotal, b.Archived, w.reported.Load())
	}
	refusal.Check(t, tasks+1)
}
