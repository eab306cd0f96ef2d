package asynqjobs

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// inVirtualTime works tasks as asynq does that loses nothing and has a worker for each, and returns
// how many runs each has had.
func inVirtualTime(t *testing.T, p *Pacer, tasks int, next asynq.Handler) (runs int) {
	t.Helper()
	h, delay := p.Middleware(next), p.Config(asynq.Config{}).RetryDelayFunc
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	var n, done atomic.Int64
	for range tasks {
		all.Go(func() {
			for ctx.Err() == nil {
				n.Add(1)
				task := asynq.NewTask("mail", nil)
				err := h.ProcessTask(ctx, task)
				if err == nil {
					done.Add(1)
					return
				}
				time.Sleep(delay(0, err, task))
			}
		})
	}
	all.Wait()
	if done.Load() != int64(tasks) {
		t.Errorf("%d of %d tasks are done within a minute, after %d runs", done.Load(), tasks, n.Load())
	}
	return int(n.Load())
}

// Each time that it came back without its ticket, a task would stand behind all others again. Where
// all do, none would ever be near its turn.
func TestTickets_NilWaitsInTheWorker(t *testing.T) {
	const tasks, rate = 100, 10
	for name, inside := range map[string]bool{"no Tickets": false, "a Scheduler inside a task that is not paced": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := jobs.New(outbound.Must(outbound.NewBucket("b", outbound.PerSecond(rate))), jobs.Config{})
				p := &Pacer{Limiter: only(l)}
				next := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
				if inside {
					p.Limiter = only(nil)
					next = func(ctx context.Context, _ *asynq.Task) error {
						return outbound.Do(ctx, l, outbound.Cost{1}, func(context.Context) error { return nil })
					}
				}
				begin := time.Now()
				if runs := inVirtualTime(t, p, tasks, next); runs != tasks {
					t.Errorf("%d runs", runs)
				}
				if took := time.Since(begin); took > 12*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A run uses the reservation of the task, and each one after it is charged anew.
func TestTickets_FailedTaskBooksAgain(t *testing.T) {
	for name, failure := range map[string]error{
		"a failure":        errBad,
		"a limiter inside": &outbound.ThrottledError{RetryAfter: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := New(w.rdb, only(&script{answers: []error{later(time.Millisecond, "x"), later(time.Millisecond, "x")}}))
			tickets := &spy{Tickets: p.Tickets}
			p.Tickets = tickets
			c := w.config()
			c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
			var runs atomic.Int64
			w.serve(p.Config(c), p.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
				if runs.Add(1) == 1 {
					return failure
				}
				return nil
			})))
			info := w.enqueue()
			w.done()
			tickets.mu.Lock()
			defer tickets.mu.Unlock()
			if got := tickets.got; !slices.Equal(got, []string{"", "x", "x", ""}) {
				t.Errorf("tickets %q", got)
			}
			if w.rdb.Exists(t.Context(), prefix+w.queue+"/"+info.ID).Val() != 0 {
				t.Error("its key stays")
			}
		})
	}
}

// Asynq has put such a task back by itself, and whoever gets it has its ticket.
func TestTickets_InterruptedTaskKeepsItsTicket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := New(w.rdb, only(&script{answers: []error{later(time.Millisecond, "x")}}))
	c := w.config()
	c.ShutdownTimeout = 50 * time.Millisecond
	begun, ended := make(chan bool, 1), make(chan error, 1)
	h := p.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		begun <- true
		<-ctx.Done()
		return ctx.Err()
	}))
	s := w.serve(p.Config(c), asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := h.ProcessTask(ctx, task)
		if ctx.Err() != nil {
			ended <- err
		}
		return err
	}))
	info := w.enqueue()
	<-begun
	s.Shutdown()
	if err := <-ended; err != context.Canceled {
		t.Error(err)
	}
	if got := p.Tickets.Get(t.Context(), w.queue+"/"+info.ID); got != "x" || w.info(info.ID).State != asynq.TaskStatePending {
		t.Errorf("ticket %q", got)
	}
}

// A task that has its reservation near at once waits for it with a ticket that nothing keeps yet. A shutdown must not send it
// behind all others.
func TestTickets_TaskInterruptedInFirstWaitHasOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	waits := make(chan bool, 1)
	p := New(w.rdb, only(limiterFunc(func(ctx context.Context) error {
		waits <- true
		<-ctx.Done()
		return &jobs.Later{Ticket: "x", Err: ctx.Err()}
	})))
	c := w.config()
	c.ShutdownTimeout = 50 * time.Millisecond
	s := w.serve(p.Config(c), p.Middleware(asynq.HandlerFunc(fails)))
	info := w.enqueue()
	<-waits
	s.Shutdown()
	w.await("its ticket is kept", func() bool { return p.Tickets.Get(t.Context(), w.queue+"/"+info.ID) == "x" })
}
