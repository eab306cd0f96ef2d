package asynqjobs

import (
	"context"
	"net/http"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// order is what a worker process works.
type order struct {
	Redis, Queue, API, Booking string
	Rate                       float64
}

// work is a worker process. Each task calls the API.
func work(o order) error {
	rdb := redis.NewClient(&redis.Options{Addr: o.Redis})
	defer rdb.Close()
	p := New(rdb, only(schedulerOf(rdb, o.Queue, o.Rate, quick)))
	p.Tickets = &jobtest.Tickets{In: p.Tickets, Missing: func(ctx context.Context) { _ = jobtest.Get(ctx, http.DefaultClient, o.Booking) }}
	c := configOf(o.Queue)
	c.DelayedTaskCheckInterval = quick.PollInterval
	s := asynq.NewServerFromRedisClient(rdb, p.Config(c))
	err := s.Start(p.Middleware(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		return jobtest.Get(ctx, http.DefaultClient, o.API)
	})))
	if err != nil {
		return err
	}
	jobtest.Wait()
	s.Shutdown()
	return nil
}

// Only the tasks that were with a killed process may book again: those that had been rescheduled have their tickets.
func TestCrash_KilledWorkerLosesReservationsOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const tasks, rate = 40, 5 // slow, so that a busy machine finds them under way
	api := jobtest.StartAPI(t, &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.LeakyBucket(1+rate/2., rate)}})
	o := order{w.addr, w.queue, api.URL, api.Booking, rate}
	for range tasks {
		w.enqueue(asynq.MaxRetry(3))
	}
	kill := jobtest.Start(t, o)
	w.await("the first calls", func() bool {
		b := w.stats()
		return api.Report().Answered >= 8 && b.Retry > 0 && b.Active > 1
	})
	kill()
	// Asynq hands out the tasks of a dead process a minute later. Here that minute is over.
	orphans := w.rdb.ZRange(t.Context(), "asynq:{"+w.queue+"}:lease", 0, -1).Val()
	w.endLeases(orphans...)
	jobtest.Start(t, o)
	w.done()
	b, booked := w.stats(), int(api.Booked.Load())
	if booked < tasks || booked > tasks+len(orphans) {
		t.Errorf("%d reservations of %d tasks, of which %d were with the process", booked, tasks, len(orphans))
	}
	if b.Archived != 0 || b.FailedTotal > len(orphans) || b.ProcessedTotal-b.FailedTotal != tasks {
		t.Errorf("%d archived, %d failed, of %d with the process; %d processed", b.Archived, b.FailedTotal, len(orphans), b.ProcessedTotal)
	}
	api.Check(t, tasks, len(orphans))
}
