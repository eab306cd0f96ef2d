package asynqjobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// desk is a limiter with one answer to Book.
type desk struct {
	script
	places []jobs.Run
	err    error
	booked []outbound.Cost
}

func (d *desk) Book(_ context.Context, costs ...outbound.Cost) ([]jobs.Run, error) {
	d.booked = append(d.booked, costs...)
	return d.places, d.err
}

func TestEnqueue_BooksAReservation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Now().Add(2 * time.Hour).Truncate(time.Second).Add(time.Millisecond)
	d := &desk{places: []jobs.Run{{At: at, Ticket: "x"}}}
	p := New(w.rdb, only(outbound.Observe(d, "shop", func(context.Context, outbound.Event) {})))
	o := make([]asynq.Option, 0, 5) // whose array is the caller's
	o = append(o, asynq.Retention(time.Minute))
	// What the task itself says stays.
	info, err := p.Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil, asynq.TaskID("mine"), asynq.Queue(w.queue), asynq.MaxRetry(4)), o...)
	if err != nil {
		t.Fatal(err)
	}
	if o[:2][1] != nil {
		t.Error("Enqueue has written into the caller's options")
	}
	got := w.info("mine")
	if info.ID != "mine" || got.MaxRetry != 4 || got.Retention != time.Minute || !got.NextProcessAt.Equal(at.Add(999*time.Millisecond).Round(0)) {
		t.Errorf("%+v: want it at the second after %v", got, at)
	}
	key := prefix + w.queue + "/mine"
	if ticket := w.rdb.Get(t.Context(), key).Val(); ticket != "x" {
		t.Errorf("ticket %q", ticket)
	}
	if ttl := w.rdb.PTTL(t.Context(), key).Val(); ttl < 170*time.Minute || ttl > 181*time.Minute {
		t.Errorf("the ticket stays for %v", ttl)
	}
	if len(d.booked) != 1 || d.booked[0] != (outbound.Cost{1}) {
		t.Errorf("booked %v", d.booked)
	}
	if _, err := p.Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil, asynq.TaskID("mine"), asynq.Queue(w.queue))); !errors.Is(err, asynq.ErrTaskIDConflict) {
		t.Error(err)
	}
}

func TestEnqueue_WithoutAReservation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	place := []jobs.Run{{At: time.Now().Add(time.Hour), Ticket: "x"}}
	if info, err := (&Pacer{Limiter: only(&desk{places: place})}).Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil), asynq.Queue(w.queue)); err != nil || info.State != asynq.TaskStatePending {
		t.Errorf("with nobody to keep its ticket: %+v, %v", info, err)
	}
	for name, c := range map[string]struct {
		l      outbound.Limiter
		o      []asynq.Option
		in     time.Duration // 0: at once
		booked int
	}{
		"no Scheduler":    {&script{}, nil, 0, 0},
		"not paced":       {nil, nil, 0, 0},
		"its own time":    {&desk{places: place}, []asynq.Option{asynq.ProcessIn(2 * time.Hour)}, 2 * time.Hour, 0},
		"its own instant": {&desk{places: place}, []asynq.Option{asynq.ProcessAt(time.Now().Add(2 * time.Hour))}, 2 * time.Hour, 0},
		"away":            {&desk{err: store.ErrUnavailable}, nil, 0, 1},
		"no answer":       {&desk{}, nil, 0, 1},
		"now":             {&desk{places: []jobs.Run{{At: time.Now().Add(-time.Minute), Ticket: ""}}}, nil, 0, 1},
		"too far":         {&desk{places: []jobs.Run{{At: place[0].At}}}, nil, time.Hour, 1},
	} {
		info, err := New(w.rdb, only(c.l)).Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil), append(c.o, asynq.Queue(w.queue))...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := time.Until(w.info(info.ID).NextProcessAt); got > c.in+time.Second || got < c.in-time.Minute {
			t.Errorf("%s: in %v", name, got)
		}
		if n := w.rdb.Exists(t.Context(), prefix+w.queue+"/"+info.ID).Val(); n != 0 {
			t.Errorf("%s: a ticket", name)
		}
		if d, ok := c.l.(*desk); ok && len(d.booked) != c.booked {
			t.Errorf("%s: booked %d times", name, len(d.booked))
		}
	}
}

// A reservation for a task that asynq does not take, or that never runs itself, would pass unused, and the API
// would stand idle as long.
func TestEnqueue_BooksNothingThatMayPassUnused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, o := range []asynq.Option{asynq.Unique(time.Minute), asynq.TaskID("mine"), asynq.Group("g")} {
		d := &desk{places: []jobs.Run{{At: time.Now().Add(time.Hour), Ticket: "x"}}}
		info, err := New(w.rdb, only(d)).Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil), asynq.Queue(w.queue), o)
		if err != nil || info.State == asynq.TaskStateScheduled || len(d.booked) != 0 {
			t.Errorf("%v: %+v, %v; booked %v", o, info, err, d.booked)
		}
	}
}

// Asynq's forwarder would bring it some seconds later.
func TestEnqueue_DueTaskIsPending(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 3 { // at the begin of a second all are
		p := New(w.rdb, only(&desk{places: []jobs.Run{{At: time.Now(), Ticket: "x"}}}))
		info, err := p.Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil, asynq.ProcessIn(time.Hour)), asynq.Queue(w.queue))
		if err != nil || info.State != asynq.TaskStatePending || p.Tickets.Get(t.Context(), w.queue+"/"+info.ID) != "x" {
			t.Errorf("%+v, %v", info, err)
		}
	}
}

func TestEnqueue_CostAboveCapacityIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, err := range []error{&outbound.CostError{Err: outbound.ErrTooLarge}, &outbound.CostError{Err: outbound.ErrInvalid}} {
		if info, got := New(w.rdb, only(&desk{err: err})).Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil), asynq.Queue(w.queue)); info != nil || !errors.Is(got, err) {
			t.Errorf("%v, %v", info, got)
		}
	}
	if queues, err := w.inspector.Queues(); err != nil {
		t.Error(err)
	} else {
		for _, q := range queues {
			if q == w.queue {
				t.Error("something was enqueued")
			}
		}
	}
	for _, c := range []struct {
		client *asynq.Client
		task   *asynq.Task
	}{{nil, asynq.NewTask("mail", nil)}, {w.client, nil}} {
		if _, err := New(w.rdb, only(nil)).Enqueue(t.Context(), c.client, c.task); !errors.Is(err, outbound.ErrInvalid) {
			t.Error(err)
		}
	}
}

func TestEnqueue_ReservationAfterDeadlineIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := New(w.rdb, only(&desk{places: []jobs.Run{{At: time.Now().Add(time.Hour), Ticket: "x"}}}))
	for deadline, late := range map[time.Duration]bool{time.Minute: true, 2 * time.Hour: false} {
		info, err := p.Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil, asynq.Deadline(time.Now().Add(deadline))), asynq.Queue(w.queue))
		var full *outbound.ThrottledError
		if info == nil || errors.As(err, &full) != late || late && (!errors.Is(err, context.DeadlineExceeded) || full.RetryAfter < 59*time.Minute) {
			t.Errorf("%v: %v, %v", deadline, info, err)
		}
	}
}

// Who enqueues a Unique task sees that it has no reservation. Its lock goes on while the task is away, and then asynq takes
// another: both are paced.
func TestEnqueue_RescheduledUniqueTaskIsUniqueForItsTTL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := &desk{places: []jobs.Run{{At: time.Now().Add(time.Hour), Ticket: "x"}}}
	d.answers = []error{later(time.Hour, "x"), later(time.Hour, "y")}
	p := New(w.rdb, only(d))
	w.serve(p.Config(w.config()), p.Middleware(asynq.HandlerFunc(fails)))
	enqueue := func() (*asynq.TaskInfo, error) {
		return p.Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil), asynq.Queue(w.queue), asynq.Unique(time.Second))
	}
	info, err := enqueue()
	if err != nil || info.State != asynq.TaskStatePending {
		t.Fatalf("%+v, %v", info, err)
	}
	w.await("it is put back", func() bool { return w.books().Retry == 1 })
	var second *asynq.TaskInfo
	w.await("its lock ends", func() bool {
		second, err = enqueue()
		if err != nil && !errors.Is(err, asynq.ErrDuplicateTask) {
			t.Fatal(err)
		}
		return err == nil
	})
	if second.State != asynq.TaskStatePending || len(d.booked) != 0 {
		t.Errorf("%+v; booked %v", second, d.booked)
	}
	w.await("both are away", func() bool { return w.books().Retry == 2 })
	w.clean()
}
