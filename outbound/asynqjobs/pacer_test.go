package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// A rescheduled task is not early, and has neither failed nor changed. A run gets its ticket once, and
// a reschedule puts it once.
func TestPacer_RescheduleIsNoFailureAndNotEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := inTurn(jobtest.Later(300*time.Millisecond, "first"), jobtest.Later(2*time.Second, "second"))
	headers := map[string]string{"trace": "1"}
	seen := make(chan map[string]string, 1)
	w.pace(l, func(_ context.Context, task *asynq.Task) error {
		seen <- maps.Clone(task.Headers())
		return nil
	})
	id := w.enqueueTask(asynq.NewTaskWithHeaders("mail", nil, headers), asynq.MaxRetry(1)).ID
	w.await("the task has its second ticket", func() bool { ticket, _ := w.ticket(id); return ticket == "second" })
	if got := w.awaitState(id, asynq.TaskStateRetry); got.Retried != 0 || !maps.Equal(got.Headers, headers) {
		t.Errorf("retried %d times, headers %v", got.Retried, got.Headers)
	}
	w.done()
	w.clean()
	if b := w.stats(); b.ProcessedTotal != 1 {
		t.Errorf("%d processed", b.ProcessedTotal)
	}
	if calls := l.seen(); len(calls) != 3 {
		t.Errorf("acquired %d times", len(calls))
	} else if calls[1].Sub(calls[0]) < 300*time.Millisecond || calls[2].Sub(calls[1]) < 2*time.Second {
		t.Errorf("early: %v, %v after", calls[1].Sub(calls[0]), calls[2].Sub(calls[1]))
	}
	if got := <-seen; !maps.Equal(got, headers) {
		t.Errorf("headers %v", got)
	}
	w.tickets.Check(t, " get() first:1h0m0.3s get(first) second:1h0m2s get(second)")
	if _, ttl := w.ticket(id); ttl < 50*time.Minute || ttl > time.Hour+2*time.Second { // 2 s and an hour
		t.Errorf("the ticket stays for %v", ttl)
	}
}

// A task on its last try, the first or a later one, waits in its worker.
func TestPacer_LastTryWaitsInTheWorker(t *testing.T) {
	for retries := range 2 {
		onRedis(t, fmt.Sprint("after retries: ", retries), func(t *testing.T, w *world) {
			answers := make([]error, retries, 4) // nil: the try fails
			l := inTurn(append(answers, jobtest.Later(100*time.Millisecond, "first"), &jobs.Later{In: 50 * time.Millisecond, Err: store.ErrUnavailable},
				&outbound.ThrottledError{RetryAfter: 10 * time.Millisecond})...)
			var calls atomic.Int64
			w.pace(l, func(context.Context, *asynq.Task) error {
				if calls.Add(1) <= int64(retries) {
					return errBad
				}
				return nil
			})
			id := w.enqueue(asynq.MaxRetry(retries)).ID
			w.done()
			if b, times := w.stats(), l.seen(); b.Archived != 0 || b.FailedTotal != retries || len(times) != retries+4 {
				t.Errorf("%d archived, %d failed, acquired %d times", b.Archived, b.FailedTotal, len(times))
			} else if times[retries+1].Sub(times[retries]) < 100*time.Millisecond {
				t.Error("the task was early")
			}
			// A run gets its ticket once. If the program ends meanwhile, the next one has the ticket.
			w.tickets.Check(t, strings.Repeat(" get()", retries+1)+" first:1h0m0.1s")
			if ticket, _ := w.ticket(id); ticket != "first" {
				t.Errorf("ticket %q", ticket)
			}
		})
	}
}

// A task does not wait for a reservation at its deadline or later.
func TestPacer_ReservationAtDeadlineEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		h := (&Pacer{Limiter: only(inTurn(jobtest.Later(time.Second, "x")))}).Middleware(asynq.HandlerFunc(succeeds))
		if err := h.ProcessTask(ctx, asynq.NewTask("mail", nil)); err == nil || ctx.Err() != nil {
			t.Errorf("%v, %v", err, ctx.Err())
		}
	})
}

// A task that cannot run is archived on its first try, and the ErrorHandler is called.
func TestPacer_TaskThatCannotRunIsArchived(t *testing.T) {
	for want, c := range map[string]struct {
		l outbound.Limiter
		o []asynq.Option
	}{
		"exceeds limit": {l: outbound.Must(outbound.NewBucket("b", outbound.Limit{Capacity: 0.5, LeakRate: 1}))},
		"last try: rate limited until after the deadline": {inTurn(jobtest.Later(2*time.Hour, "x")), []asynq.Option{asynq.MaxRetry(0), asynq.Timeout(time.Hour)}},
	} {
		onRedis(t, want, func(t *testing.T, w *world) {
			w.pace(c.l, fails)
			got := w.awaitState(w.enqueue(c.o...).ID, asynq.TaskStateArchived)
			if w.reported.Load() != 1 || got.Retried != 0 || !strings.Contains(got.LastErr, want) {
				t.Errorf("%d reported, %+v", w.reported.Load(), got)
			}
		})
	}
}

// The limiter of an http.Client inside the task is the only one here. The task needs no ticket.
func TestPacer_LimiterInsideReschedules(t *testing.T) {
	for name, retries := range map[string]int{"a try": 5, "the last try": 0} {
		onRedis(t, name, func(t *testing.T, w *world) {
			var calls atomic.Int64
			w.pace(nil, func(context.Context, *asynq.Task) error {
				if calls.Add(1) < 3 {
					return fmt.Errorf("GET: %w", &outbound.ThrottledError{RetryAfter: 20 * time.Millisecond})
				}
				return nil
			})
			w.enqueue(asynq.MaxRetry(retries))
			w.done()
			w.clean()
			if n := calls.Load(); n != 3 {
				t.Errorf("%d calls", n)
			}
			w.tickets.Check(t, "")
		})
	}
}

// A Pacer without a Limiter refuses each task.
func TestPacer_NilLimiterIsAnError(t *testing.T) {
	err := new(Pacer).Middleware(asynq.HandlerFunc(fails)).ProcessTask(t.Context(), asynq.NewTask("mail", nil))
	if !errors.Is(err, outbound.ErrInvalid) {
		t.Error(err)
	}
}

// A task whose own time is over is archived after its tries.
func TestPacer_OwnTimeOverCountsAsATry(t *testing.T) {
	for name, job := range jobtest.OwnTime() {
		onRedis(t, name, func(t *testing.T, w *world) {
			var runs atomic.Int64
			w.pace(nil, func(ctx context.Context, _ *asynq.Task) error {
				runs.Add(1)
				return job(ctx)
			})
			got := w.awaitState(w.enqueue(asynq.MaxRetry(2)).ID, asynq.TaskStateArchived)
			if got.Retried != 2 || runs.Load() != 3 || w.reported.Load() != 3 {
				t.Errorf("%d runs, %d reported: %+v", runs.Load(), w.reported.Load(), got)
			}
		})
	}
}
