package asynqjobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Enqueue books a reservation where there is one.
func TestEnqueue_BooksWhereItCan(t *testing.T) {
	t.Parallel()
	onRedis(t, "A task is enqueued for the second after its reservation, with its ticket and its own options. The lock of a Unique counts from there", func(t *testing.T, w *world) {
		at := time.Now().Add(2 * time.Hour).Truncate(time.Second).Add(time.Millisecond)
		f := &fake{runs: []jobs.Run{{At: at, Ticket: "x"}}}
		p := w.pacer(outbound.Observe(f, "shop", func(context.Context, outbound.Event) {}))
		o := append(make([]asynq.Option, 0, 5), asynq.Retention(time.Minute)) // its array is the caller's
		task := asynq.NewTask("mail", nil, asynq.TaskID("mine"), asynq.Queue(w.queue), asynq.MaxRetry(4), asynq.Unique(time.Minute))
		info := jobtest.Must(p.Enqueue(t.Context(), w.client, task, o...))
		if o[:2][1] != nil {
			t.Error("Enqueue has written into the caller's options")
		}
		got := w.info("mine")
		if info.ID != "mine" || got.MaxRetry != 4 || got.Retention != time.Minute || !got.NextProcessAt.Equal(at.Add(999*time.Millisecond).Round(0)) {
			t.Errorf("%+v: want it at the second after %v", got, at)
		}
		if ticket, ttl := w.ticket("mine"); ticket != "x" || ttl < 170*time.Minute || ttl > 181*time.Minute {
			t.Errorf("ticket %q for %v", ticket, ttl)
		}
		if len(f.booked) != 1 || f.booked[0] != (outbound.Cost{1}) {
			t.Errorf("booked %v", f.booked)
		}
		keys := w.rdb.Keys(t.Context(), "asynq:{"+w.queue+"}:unique:*").Val()
		if len(keys) != 1 || w.rdb.PTTL(t.Context(), keys[0]).Val() < 110*time.Minute {
			t.Errorf("the lock %v ends before the reservation", keys)
		}
		if _, err := p.Enqueue(t.Context(), w.client, task); !errors.Is(err, asynq.ErrDuplicateTask) {
			t.Error(err)
		}
	})
	onRedis(t, "Enqueue books nothing that may pass unused, and enqueues a task that has no reservation", func(t *testing.T, w *world) {
		at := time.Now().Add(time.Hour)
		booked := func(runs ...jobs.Run) *fake { return &fake{runs: runs} }
		hour := booked(jobs.Run{At: at, Ticket: "x"})
		for name, c := range map[string]struct {
			l      outbound.Limiter
			o      asynq.Option
			in     time.Duration // 0: the task is not scheduled
			ticket string
		}{
			"no Scheduler":      {l: outbound.Must(outbound.NewBucket("b", outbound.PerSecond(1)))},
			"not paced":         {},
			"its own delay":     {l: hour, o: asynq.ProcessIn(2 * time.Hour), in: 2 * time.Hour},
			"its own time":      {l: hour, o: asynq.ProcessAt(at.Add(time.Hour)), in: 2 * time.Hour},
			"unique":            {l: hour, o: asynq.Unique(time.Minute)},
			"its own ID":        {l: hour, o: asynq.TaskID("mine")},
			"part of a group":   {l: hour, o: asynq.Group("g")},
			"no Tickets":        {l: hour},
			"unavailable store": {l: &fake{err: store.ErrUnavailable}},
			"no answer":         {l: booked()},
			"due":               {l: booked(jobs.Run{At: time.Now().Add(-time.Minute)})},
			"due with a ticket": {l: booked(jobs.Run{At: time.Now(), Ticket: "y"}), ticket: "y"},
			"no ticket":         {l: booked(jobs.Run{At: at}), in: time.Hour},
		} {
			p := w.pacer(c.l)
			if name == "no Tickets" {
				p.Tickets = nil
			}
			o := []asynq.Option{asynq.Queue(w.queue)}
			if c.o != nil {
				o = append(o, c.o)
			}
			info := jobtest.Must(p.Enqueue(t.Context(), w.client, asynq.NewTask("mail", []byte(name)), o...))
			scheduled := info.State == asynq.TaskStateScheduled
			if in := time.Until(info.NextProcessAt); scheduled != (c.in > 0) || scheduled && (in < c.in-time.Minute || in > c.in+time.Second) {
				t.Errorf("%s: %v, in %v", name, info.State, in)
			}
			if ticket, _ := w.ticket(info.ID); ticket != c.ticket {
				t.Errorf("%s: ticket %q", name, ticket)
			}
		}
		if len(hour.booked) != 0 {
			t.Errorf("booked %v", hour.booked)
		}
	})
	onRedis(t, "A cost above a limit's capacity is an error, as is a nil argument, and no task is enqueued", func(t *testing.T, w *world) {
		task := asynq.NewTask("mail", nil)
		for name, c := range map[string]struct {
			client *asynq.Client
			task   *asynq.Task
			err    error // of Book
			want   error
		}{
			"too large": {w.client, task, &outbound.CostError{Err: outbound.ErrTooLarge}, outbound.ErrTooLarge},
			"invalid":   {w.client, task, &outbound.CostError{Err: outbound.ErrInvalid}, outbound.ErrInvalid},
			"no client": {nil, task, nil, outbound.ErrInvalid},
			"no task":   {w.client, nil, nil, outbound.ErrInvalid},
		} {
			if info, err := w.pacer(&fake{err: c.err}).Enqueue(t.Context(), c.client, c.task, asynq.Queue(w.queue)); info != nil || !errors.Is(err, c.want) {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		if _, err := w.inspector.ListPendingTasks(w.queue); !errors.Is(err, asynq.ErrQueueNotFound) {
			t.Errorf("a task was enqueued: %v", err)
		}
	})
	onRedis(t, "A reservation after the task's Deadline is an error, and the task is enqueued", func(t *testing.T, w *world) {
		p := w.pacer(&fake{runs: []jobs.Run{{At: time.Now().Add(time.Hour), Ticket: "x"}}})
		for deadline, late := range map[time.Duration]bool{time.Minute: true, 2 * time.Hour: false} {
			info, err := p.Enqueue(t.Context(), w.client, asynq.NewTask("mail", nil, asynq.Deadline(time.Now().Add(deadline))), asynq.Queue(w.queue))
			var full *outbound.ThrottledError
			if info == nil || errors.As(err, &full) != late || late && (!errors.Is(err, context.DeadlineExceeded) || full.RetryAfter < 59*time.Minute) {
				t.Errorf("%v: %v, %v", deadline, info, err)
			}
		}
	})
}
