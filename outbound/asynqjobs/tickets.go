package asynqjobs

import (
	"context"
	"math"
	"time"

	"github.com/redis/go-redis/v9"
)

// Tickets keeps the tickets of tasks that were rescheduled. A ticket grants nothing: a lost, forged
// or exchanged one changes the order of tasks only.
type Tickets interface {
	// Get returns the ticket of a task, or "" if it is missing or unreadable. A ticket that was read
	// stays, because asynq may hand out a task again.
	Get(ctx context.Context, task string) string
	// Put keeps the ticket of a task for ttl, and replaces an older one. An empty ticket is none.
	Put(ctx context.Context, task, ticket string, ttl time.Duration) error
}

// margin is how much later than its reservation a task still finds its ticket.
const margin = time.Hour

// keep keeps a task's ticket until it is due, and a margin. It goes on after the end of ctx, as at
// a shutdown, but not for long.
func (p *Pacer) keep(ctx context.Context, task, ticket string, in time.Duration) error {
	if p.Tickets == nil || task == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return p.Tickets.Put(ctx, task, ticket, min(max(in, 0), math.MaxInt64-margin)+margin)
}

// taskName names a task. Asynq's IDs are those of one queue.
func taskName(queue, id string) string { return queue + "/" + id }

type redisTickets struct{ rdb redis.UniversalClient }

const prefix = "dripfeed:ticket:"

func (r redisTickets) Get(ctx context.Context, task string) string {
	ticket, _ := r.rdb.Get(ctx, prefix+task).Result() // without a ticket the task gets another reservation
	return ticket
}

func (r redisTickets) Put(ctx context.Context, task, ticket string, ttl time.Duration) error {
	if ticket == "" {
		return r.rdb.Del(ctx, prefix+task).Err()
	}
	return r.rdb.Set(ctx, prefix+task, ticket, ttl).Err()
}
