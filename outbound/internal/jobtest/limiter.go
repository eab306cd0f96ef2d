package jobtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Later is the error of a Scheduler that reschedules a job.
func Later(in time.Duration, ticket string) error { return &jobs.Later{In: in, Ticket: ticket} }

// InTurn answers the calls of a limiter or of a job in turn: the n-th call, from 1, gets the n-th
// error. Later calls succeed.
func InTurn(errs ...error) func(ctx context.Context, n int) error {
	return func(_ context.Context, n int) error {
		if n > len(errs) {
			return nil
		}
		return errs[n-1]
	}
}

// Tickets keeps tickets, and records how it is used.
type Tickets struct {
	In interface { // where it keeps them; if nil, in memory
		Get(ctx context.Context, job string) string
		Put(ctx context.Context, job, ticket string, ttl time.Duration) error
	}
	Missing func(context.Context) // what Get calls for a job that has none, or nil
	Err     error                 // of each Put, which keeps nothing then

	mu      sync.Mutex // protects the fields below
	tickets map[string]string
	used    string
}

// Get returns the ticket of a job.
func (k *Tickets) Get(ctx context.Context, job string) (ticket string) {
	if k.In != nil {
		ticket = k.In.Get(ctx, job)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.In == nil {
		ticket = k.tickets[job]
	}
	k.used += " get(" + ticket + ")"
	if ticket == "" && k.Missing != nil {
		k.Missing(ctx)
	}
	return ticket
}

// Put keeps the ticket of a job.
func (k *Tickets) Put(ctx context.Context, job, ticket string, ttl time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used += fmt.Sprintf(" %s:%v", ticket, ttl)
	switch {
	case k.Err != nil:
		return k.Err
	case k.In != nil:
		return k.In.Put(ctx, job, ticket, ttl)
	case k.tickets == nil:
		k.tickets = map[string]string{}
	}
	k.tickets[job] = ticket
	return nil
}

// Check checks how the Tickets were used: " get(ticket)" for each Get, and " ticket:ttl" for each
// Put.
func (k *Tickets) Check(t testing.TB, want string) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.used != want {
		t.Errorf("tickets%s, want%s", k.used, want)
	}
}

// Refusal is a job whose call the API refuses once. The calls that were admitted before it come
// within Grace, and all later ones must come after the hold.
type Refusal struct {
	Nth         int // the call that is refused, from 1
	Hold, Grace time.Duration

	mu    sync.Mutex // protects the fields below
	calls int
	at    time.Time // of the refusal
	early int
}

// ErrRefused is the error of the call that is refused.
var ErrRefused = errors.New("refused")

// Call is a run of the job.
func (r *Refusal) Call(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls++; r.calls == r.Nth {
		r.at = time.Now()
		outbound.PermitFrom(ctx).Refused(r.Hold)
		return ErrRefused
	}
	if since := time.Since(r.at); r.calls > r.Nth && since >= r.Grace && since < r.Hold {
		r.early++
	}
	return nil
}

// Check checks how many calls have come, and that none has come during the hold.
func (r *Refusal) Check(t testing.TB, calls int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls != calls || r.early != 0 {
		t.Errorf("%d calls, want %d; %d of them during the hold", r.calls, calls, r.early)
	}
}
