package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

func TestPacer_RescheduleIsNoFailureAndNotEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := &script{answers: []error{later(300*time.Millisecond, "first"), later(2*time.Second, "second")}}
	headers := map[string]string{"trace": "1"}
	var seen atomic.Value
	w.pace(l, func(_ context.Context, task *asynq.Task) error {
		seen.Store(maps.Clone(task.Headers()))
		return nil
	})
	info, err := w.client.Enqueue(asynq.NewTaskWithHeaders("mail", nil, headers), asynq.Queue(w.queue), asynq.MaxRetry(1))
	if err != nil {
		t.Fatal(err)
	}
	key := prefix + w.queue + "/" + info.ID
	w.await("the task has gone back twice", func() bool {
		return w.rdb.Get(t.Context(), key).Val() == "second" && w.info(info.ID).State == asynq.TaskStateRetry
	})
	if got := w.info(info.ID); got.Retried != 0 || !maps.Equal(got.Headers, headers) {
		t.Errorf("retried %d times, headers %v", got.Retried, got.Headers)
	}
	w.done()
	w.clean()
	if b := w.books(); b.ProcessedTotal != 1 {
		t.Errorf("%d processed", b.ProcessedTotal)
	}
	if calls := l.seen(); len(calls) != 3 {
		t.Errorf("asked %d times", len(calls))
	} else if calls[1].Sub(calls[0]) < 300*time.Millisecond || calls[2].Sub(calls[1]) < 2*time.Second {
		t.Errorf("early: %v, %v after", calls[1].Sub(calls[0]), calls[2].Sub(calls[1]))
	}
	if got, _ := seen.Load().(map[string]string); !maps.Equal(got, headers) {
		t.Errorf("headers %v", got)
	}
	// It was kept for 2 s and an hour.
	if ttl := w.rdb.PTTL(t.Context(), key).Val(); ttl < 50*time.Minute || ttl > time.Hour+2*time.Second {
		t.Errorf("the ticket stays for %v", ttl)
	}
}

func TestPacer_LastTryWaitsInTheWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := &script{answers: []error{
		later(100*time.Millisecond, "first"), &jobs.Later{In: 50 * time.Millisecond, Err: store.ErrUnavailable},
		&outbound.ThrottledError{RetryAfter: 10 * time.Millisecond},
	}}
	var runs atomic.Int64
	p := New(w.rdb, only(l))
	h := p.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	info := w.enqueue(asynq.MaxRetry(0))
	w.serve(p.Config(w.config()), asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		runs.Add(1)
		return h.ProcessTask(ctx, task)
	}))
	w.done()
	w.clean()
	if calls := l.seen(); runs.Load() != 1 || len(calls) != 4 || calls[1].Sub(calls[0]) < 100*time.Millisecond {
		t.Errorf("%d runs, asked %d times", runs.Load(), len(calls))
	}
	// Should the program end meanwhile, the next one has the ticket.
	if got := p.Tickets.Get(t.Context(), w.queue+"/"+info.ID); got != "first" {
		t.Errorf("ticket %q", got)
	}
}

// What asynq archives in spite of us is at least told.
func TestPacer_LastTryThatCannotWaitIsArchived(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	info := w.enqueue(asynq.MaxRetry(0), asynq.Timeout(time.Hour))
	w.pace(&script{answers: []error{later(2*time.Hour, "x")}}, fails)
	w.await("the task is archived", func() bool { return w.info(info.ID).State == asynq.TaskStateArchived })
	if got := w.info(info.ID).LastErr; w.reported.Load() != 1 || !strings.Contains(got, "last try: rate limited until after the deadline") {
		t.Errorf("%d reported, %q", w.reported.Load(), got)
	}
}

func TestPacer_CostAboveCapacityIsArchived(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	info := w.enqueue()
	bucket := outbound.Must(outbound.NewBucket("b", outbound.PerSecond(1)))
	p := New(w.rdb, func(*asynq.Task) (outbound.Limiter, outbound.Cost) { return bucket, outbound.Cost{2} })
	var ran atomic.Bool
	w.serve(p.Config(w.config()), p.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		ran.Store(true)
		return nil
	})))
	w.await("the task is archived", func() bool { return w.info(info.ID).State == asynq.TaskStateArchived })
	if got := w.info(info.ID); ran.Load() || got.Retried != 0 || w.reported.Load() != 1 || !strings.Contains(got.LastErr, "exceeds limit") {
		t.Errorf("ran: %v; %d reported; %+v", ran.Load(), w.reported.Load(), got)
	}
}

// The limiter of an http.Client inside the task is the only one here, and charges it once.
func TestPacer_LimiterInsideReschedules(t *testing.T) {
	for name, retries := range map[string]int{"a try": 5, "the last try": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var calls atomic.Int64
			w.pace(nil, func(context.Context, *asynq.Task) error {
				if calls.Add(1) < 3 {
					return fmt.Errorf("GET: %w", &outbound.ThrottledError{RetryAfter: 20 * time.Millisecond})
				}
				return nil
			})
			info := w.enqueue(asynq.MaxRetry(retries))
			w.done()
			w.clean()
			if n := calls.Load(); n != 3 {
				t.Errorf("%d calls", n)
			}
			if w.rdb.Exists(t.Context(), prefix+w.queue+"/"+info.ID).Val() != 0 {
				t.Error("a task that is not paced has a ticket")
			}
		})
	}
}

// paced is a real bucket, of whose permits the task tells.
func paced() outbound.Limiter {
	return outbound.Must(outbound.NewBucket("b", outbound.Limit{Capacity: 100, LeakRate: 100}))
}

func TestPacer_RefusedTaskFailsAndRetriesAfterTheHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var refused atomic.Value
	p := New(w.rdb, only(paced()))
	c := w.config()
	c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
	w.serve(p.Config(c), p.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		refused.Store(time.Now())
		outbound.PermitFrom(ctx).Refused(time.Hour)
		return errBad
	})))
	info := w.enqueue()
	w.await("the task comes back", func() bool { return w.info(info.ID).State == asynq.TaskStateRetry })
	got := w.info(info.ID)
	if got.Retried != 1 || got.LastErr != "bad" || w.reported.Load() != 1 || w.books().FailedTotal != 1 {
		t.Errorf("%d reported, %+v", w.reported.Load(), got)
	}
	if at := refused.Load().(time.Time).Add(time.Hour); got.NextProcessAt.Before(at.Truncate(0)) {
		t.Errorf("back at %v, held until %v", got.NextProcessAt, at)
	}
}

func TestConfig_RetryDelayIsAtLeastTheHold(t *testing.T) {
	minute := func(int, error, *asynq.Task) time.Duration { return time.Minute }
	for _, c := range []struct {
		tell func(*outbound.Permit)
		want time.Duration
	}{
		{func(*outbound.Permit) {}, time.Minute},
		{func(p *outbound.Permit) { p.Refused(time.Second) }, time.Minute},
		{func(p *outbound.Permit) { p.Refused(time.Hour) }, time.Hour},
		{func(p *outbound.Permit) { p.Hold(2 * time.Hour); p.Refused(time.Second) }, 2 * time.Hour},
		{func(p *outbound.Permit) { p.Hold(-time.Hour) }, time.Minute},
		{func(p *outbound.Permit) { p.Refused(math.MaxInt64) }, 100 * 365 * 24 * time.Hour},
	} {
		p := &Pacer{Limiter: only(paced())}
		err := p.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			c.tell(outbound.PermitFrom(ctx))
			return errBad
		})).ProcessTask(t.Context(), asynq.NewTask("mail", nil))
		if !errors.Is(err, errBad) || err.Error() != "bad" {
			t.Errorf("%v", err)
		}
		if d := p.Config(asynq.Config{RetryDelayFunc: minute}).RetryDelayFunc(0, err, nil); d < c.want || c.want <= 2*time.Hour && d > c.want+time.Second {
			t.Errorf("back in %v, want %v", d, c.want)
		}
	}
	// An API that does not say for how long holds a bucket for a second.
	p := &Pacer{Limiter: only(paced())}
	err := p.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		outbound.PermitFrom(ctx).Refused(0)
		return errBad
	})).ProcessTask(t.Context(), asynq.NewTask("mail", nil))
	var held *heldError
	if !errors.As(err, &held) || held.wait != time.Second {
		t.Errorf("%#v", err)
	}
}

func TestConfig_KeepsGivenFields(t *testing.T) {
	p := new(Pacer)
	c := p.Config(asynq.Config{Concurrency: 7, DelayedTaskCheckInterval: time.Minute})
	if c.Concurrency != 7 || c.DelayedTaskCheckInterval != time.Minute || c.ErrorHandler != nil {
		t.Errorf("%+v", c)
	}
	if !c.IsFailure(errBad) || c.IsFailure(later(1, "")) {
		t.Error("of failures")
	}
	if d := c.RetryDelayFunc(3, errBad, nil); d < 90*time.Second { // asynq's own, of 3 tries
		t.Errorf("asynq's own delay, %v", d)
	}
	told := 0
	c = p.Config(asynq.Config{
		IsFailure:    func(err error) bool { return err != errBad },
		ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { told++ }),
	})
	if c.IsFailure(errBad) || !c.IsFailure(context.Canceled) || c.IsFailure(later(1, "")) {
		t.Error("of failures, with a function")
	}
	for _, err := range []error{errBad, later(1, ""), fmt.Errorf("%w, %w", later(1, ""), asynq.SkipRetry), fmt.Errorf("%w, %w", later(1, ""), asynq.RevokeTask)} {
		c.ErrorHandler.HandleError(t.Context(), nil, err)
	}
	if told != 3 {
		t.Errorf("told of %d, want all but the Later that goes back", told)
	}
}

func TestPacer_DelayIsWholeSeconds(t *testing.T) {
	delay := new(Pacer).Config(asynq.Config{}).RetryDelayFunc
	for _, in := range []time.Duration{0, 1, 300 * time.Millisecond, time.Second, time.Hour} {
		due := time.Now().Add(in).Round(0)
		d := delay(0, later(in, ""), nil)
		if comes := time.Now().Add(d).Truncate(time.Second); comes.Before(due) || d > in+time.Second {
			t.Errorf("%v became %v", in, d)
		}
	}
	if d := delay(0, later(math.MaxInt64, ""), nil); d < 1<<62 {
		t.Errorf("the longest delay became %v", d)
	}
	if d := delay(0, later(math.MinInt64, ""), nil); d > 0 {
		t.Errorf("the most negative delay became %v", d)
	}
}

// lost is where tickets are lost.
type lost struct{ ttl time.Duration }

func (lost) Get(context.Context, string) string { return "" }

func (l *lost) Put(_ context.Context, _, _ string, ttl time.Duration) error {
	l.ttl = ttl
	return errBad
}

func TestTickets_PutErrorIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := &Pacer{Limiter: only(&script{answers: []error{later(time.Hour, "x")}}), Tickets: new(lost)}
	w.serve(p.Config(w.config()), p.Middleware(asynq.HandlerFunc(fails)))
	info := w.enqueue()
	w.await("the task is put back", func() bool { return w.info(info.ID).State == asynq.TaskStateRetry })
	if got := w.info(info.ID); got.Retried != 0 || !strings.Contains(got.LastErr, "keeping a ticket: bad") || time.Until(got.NextProcessAt) < 59*time.Minute {
		t.Errorf("%+v", got)
	}
}

func TestTickets_TTLDoesNotOverflow(t *testing.T) {
	for in, want := range map[time.Duration]time.Duration{-time.Hour: time.Hour, time.Minute: 61 * time.Minute, math.MaxInt64: math.MaxInt64} {
		kept := new(lost)
		if err := (&Pacer{Tickets: kept}).keep(t.Context(), "q/1", "x", in); err != errBad || kept.ttl != want {
			t.Errorf("%v: kept for %v, %v", in, kept.ttl, err)
		}
	}
}

func TestPacer_NilLimiterIsAnError(t *testing.T) {
	err := new(Pacer).Middleware(asynq.HandlerFunc(fails)).ProcessTask(t.Context(), asynq.NewTask("mail", nil))
	if !errors.Is(err, outbound.ErrInvalid) {
		t.Error(err)
	}
}

// A task is handed out again by a shutdown as it is by a crash: see TestCrash_KilledWorkerLosesReservationsOnly.
func TestShutdown_LosesNoWaitingTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	waits := make(chan bool, 1)
	calls := 0
	stuck := limiterFunc(func(ctx context.Context) error {
		if calls++; calls == 1 {
			return later(50*time.Millisecond, "x")
		}
		waits <- true
		<-ctx.Done()
		return &jobs.Later{Err: ctx.Err()}
	})
	p := New(w.rdb, only(stuck))
	tickets := &spy{Tickets: p.Tickets}
	p.Tickets = tickets
	c := w.config()
	c.ShutdownTimeout = 50 * time.Millisecond
	s := w.serve(p.Config(c), p.Middleware(asynq.HandlerFunc(fails)))
	info := w.enqueue(asynq.MaxRetry(0)) // asynq must not count anything on a last try
	<-waits
	s.Shutdown()
	if got := w.info(info.ID); got.State != asynq.TaskStatePending || got.Retried != 0 {
		t.Errorf("%+v", got)
	}
	p.Limiter = only(new(script))
	w.serve(p.Config(c), p.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })))
	w.done()
	w.clean()
	if got := tickets.got; !slices.Equal(got, []string{"", "x"}) {
		t.Errorf("tickets %q", got)
	}
}

type limiterFunc func(context.Context) error

func (f limiterFunc) Acquire(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, f(ctx)
}

// When a task's time is over asynq reads its headers, to write the task back, while the handler may run on. Whoever
// wrote them then would end the program, and the race detector tells of him here.
func TestPacer_LeavesTaskHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ended := make(chan bool)
	asked := 0
	p := New(w.rdb, only(limiterFunc(func(ctx context.Context) error {
		if asked++; asked == 1 {
			return later(time.Millisecond, "x") // on the last try it waits with this ticket
		}
		<-ctx.Done()
		return later(time.Hour, "y")
	})))
	h := p.Middleware(asynq.HandlerFunc(fails))
	headers := map[string]string{"tenant": "acme"}
	var after map[string]string
	w.serve(p.Config(w.config()), asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		defer close(ended)
		err := h.ProcessTask(ctx, task)
		after = maps.Clone(task.Headers())
		return err
	}))
	info, err := w.client.Enqueue(asynq.NewTaskWithHeaders("mail", nil, headers), asynq.Queue(w.queue), asynq.MaxRetry(0), asynq.Timeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	<-ended
	w.await("asynq has written the task back", func() bool { return w.books().Archived == 1 })
	if got := w.info(info.ID).Headers; !maps.Equal(got, headers) || !maps.Equal(after, headers) {
		t.Errorf("%v in asynq, %v in the handler", got, after)
	}
}
