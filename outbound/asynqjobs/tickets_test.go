package asynqjobs

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// A task that nothing keeps the ticket of would book behind all others at each reschedule, and never
// be near its reservation. It waits in its worker.
func TestTickets_NilWaitsInTheWorker(t *testing.T) {
	const tasks, rate = 100, 10
	for name, inside := range map[string]bool{"no Tickets": false, "a Scheduler inside a task that is not paced": true} {
		synctest.Test(t, func(t *testing.T) {
			l := jobs.New(outbound.Must(outbound.NewBucket("b", outbound.PerSecond(rate))), jobs.Config{})
			p := &Pacer{Limiter: only(l)}
			next := asynq.HandlerFunc(succeeds)
			if inside {
				p.Limiter = only(nil)
				next = func(ctx context.Context, _ *asynq.Task) error {
					return outbound.Do(ctx, l, outbound.Cost{1}, func(context.Context) error { return nil })
				}
			}
			h, delay, begin := p.Middleware(next), p.Config(asynq.Config{}).RetryDelayFunc, time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var all sync.WaitGroup
			var runs, done atomic.Int64
			for range tasks {
				all.Go(func() {
					for ctx.Err() == nil {
						runs.Add(1)
						err := h.ProcessTask(ctx, asynq.NewTask("mail", nil))
						if err == nil {
							done.Add(1)
							return
						}
						time.Sleep(delay(0, err, nil))
					}
				})
			}
			all.Wait()
			if took := time.Since(begin); done.Load() != tasks || runs.Load() != tasks || took > 12*time.Second {
				t.Errorf("%s: %d tasks done after %d runs and %v", name, done.Load(), runs.Load(), took)
			}
		})
	}
}

// A run uses the reservation of the task, and the next run is charged and books again.
func TestTickets_FailedTaskBooksAgain(t *testing.T) {
	for name, failure := range map[string]error{
		"a failure":        errBad,
		"a limiter inside": &outbound.ThrottledError{RetryAfter: time.Millisecond},
	} {
		onRedis(t, name, func(t *testing.T, w *world) {
			var runs atomic.Int64
			w.pace(inTurn(jobtest.Later(time.Millisecond, "x"), jobtest.Later(time.Millisecond, "x")), func(context.Context, *asynq.Task) error {
				if runs.Add(1) == 1 {
					return failure
				}
				return nil
			})
			info := w.enqueue()
			w.done()
			w.tickets.Check(t, " get() x:1h0m0.001s get(x) x:1h0m0.001s get(x) :1h0m0s get()")
			if w.rdb.Exists(t.Context(), prefix+w.queue+"/"+info.ID).Val() != 0 {
				t.Error("its key stays")
			}
		})
	}
}

// A task whose ticket was not kept is rescheduled, and its LastErr says so.
func TestTickets_PutErrorIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tickets.Err = errBad
	w.pace(inTurn(jobtest.Later(time.Hour, "x")), fails)
	got := w.awaitState(w.enqueue().ID, asynq.TaskStateRetry)
	if got.Retried != 0 || !strings.Contains(got.LastErr, "keeping a ticket: bad") || time.Until(got.NextProcessAt) < 59*time.Minute {
		t.Errorf("%+v", got)
	}
}

// A ticket stays for an hour after the task is due, at most for the longest time.
func TestTickets_TTLDoesNotOverflow(t *testing.T) {
	for in, want := range map[time.Duration]time.Duration{-time.Hour: time.Hour, time.Minute: 61 * time.Minute, math.MaxInt64: math.MaxInt64} {
		kept := &jobtest.Tickets{Err: errBad}
		if err := (&Pacer{Tickets: kept}).keep(t.Context(), "q/1", "x", in); err != errBad {
			t.Errorf("%v: %v", in, err)
		}
		kept.Check(t, " x:"+want.String())
	}
}

// A shutdown puts a task that waits or runs at the head of the queue, with its ticket, and counts
// nothing, not even on a last try. The next process uses the ticket.
func TestShutdown_TaskKeepsItsTicketAndTry(t *testing.T) {
	for name, c := range map[string]struct {
		first  error  // of the limiter
		ticket string // of the wait that the shutdown ends
		runs   bool   // the shutdown ends a run
	}{
		"first wait":  {ticket: "x"}, // no Put before
		"second wait": {first: jobtest.Later(time.Millisecond, "x")},
		"run":         {first: jobtest.Later(time.Millisecond, "x"), runs: true},
	} {
		onRedis(t, name, func(t *testing.T, w *world) {
			begun, ended := make(chan bool, 1), make(chan bool, 1)
			untilEnd := func(ctx context.Context) error {
				begun <- true
				<-ctx.Done() // asynq has put the task back
				return ctx.Err()
			}
			p := w.pacer(&fake{acquire: func(ctx context.Context, n int) error {
				if n == 1 && c.first != nil {
					return c.first
				}
				if c.runs {
					return nil
				}
				return &jobs.Later{In: time.Millisecond, Ticket: c.ticket, Err: untilEnd(ctx)}
			}})
			h := p.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error { return untilEnd(ctx) }))
			config := p.Config(w.config())
			config.Concurrency, config.ShutdownTimeout = 1, 50*time.Millisecond
			s := w.serve(config, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				defer func() { ended <- true }()
				return h.ProcessTask(ctx, task)
			}))
			id := w.enqueue(asynq.MaxRetry(0)).ID
			<-begun
			w.enqueue()
			s.Shutdown()
			<-ended
			pending, err := w.inspector.ListPendingTasks(w.queue)
			if err != nil || len(pending) != 2 || pending[0].ID != id || pending[0].Retried != 0 {
				t.Errorf("pending: %v, %v", pending, err)
			}
			if ticket, _ := w.ticket(id); ticket != "x" {
				t.Errorf("ticket %q", ticket)
			}
			p.Limiter = only(new(fake))
			w.serve(config, p.Middleware(asynq.HandlerFunc(succeeds)))
			w.done()
			w.clean()
			w.tickets.Check(t, " get() x:1h0m0.001s get(x) get()")
		})
	}
}
