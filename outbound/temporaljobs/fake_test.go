package temporaljobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// script is a limiter that answers as a test tells it to.
type script struct {
	answer func(ctx context.Context, n int) error // the n-th Acquire, from 1
	place  func(outbound.Cost) (jobs.Run, error)  // for Book

	mu       sync.Mutex
	arrivals []arrival
	booked   []outbound.Cost
	done     int // permits that were ended
	settled  outbound.Cost
}

// arrival is what came to an Acquire.
type arrival struct {
	ticket  string
	cost    outbound.Cost
	attempt int32
}

func (s *script) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	s.mu.Lock()
	s.arrivals = append(s.arrivals, arrival{ticketIn(ctx), c, activity.GetInfo(ctx).Attempt})
	n := len(s.arrivals)
	s.mu.Unlock()
	if err := s.answer(ctx, n); err != nil {
		return outbound.Permit{}, err
	}
	return outbound.NewPermit(&scriptCall{s: s}), nil
}

func (s *script) Book(_ context.Context, costs ...outbound.Cost) (all []jobs.Run, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range costs {
		s.booked = append(s.booked, c)
		p, err := s.place(c)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// scriptCall counts the calls that have ended.
type scriptCall struct{ s *script }

func (c *scriptCall) Settle(used outbound.Cost) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.settled = used
}
func (c *scriptCall) Answered(outbound.Answer) {}
func (c *scriptCall) Done() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.done++
}

// paced is the limiter of activities of the name "Call" alone.
func (s *script) paced(info activity.Info) (outbound.Limiter, outbound.Cost) {
	if info.ActivityType.Name != "Call" {
		return nil, outbound.Cost{}
	}
	return outbound.Observe(s, "calls", func(context.Context, outbound.Event) {}), outbound.Cost{1}
}

// check compares what came with what was to come.
func (s *script) check(t *testing.T, want ...arrival) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if fmt.Sprint(s.arrivals) != fmt.Sprint(want) {
		t.Errorf("arrivals %v, want %v", s.arrivals, want)
	}
}

// ticketIn returns the ticket of a ctx of jobs.WithTicket. Only package jobs can read it, but a ctx prints it.
func ticketIn(ctx context.Context) string {
	_, ticket, ok := strings.Cut(fmt.Sprint(ctx), ".WithValue(jobs.ticketKey, ")
	if !ok {
		return "none"
	}
	return strings.TrimSuffix(ticket, ")")
}

// kept is Tickets in a map.
type kept struct {
	mu      sync.Mutex
	tickets map[string]string
	ttls    []time.Duration
	gets    int
	fails   bool
}

func (k *kept) Get(_ context.Context, activity string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gets++
	return k.tickets[activity]
}

func (k *kept) Put(_ context.Context, activity, ticket string, ttl time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails {
		return errors.New("no tickets today")
	}
	if k.tickets == nil {
		k.tickets = map[string]string{}
	}
	k.tickets[activity] = ticket
	k.ttls = append(k.ttls, ttl)
	return nil
}

// counter is an activity that counts its runs.
type counter struct {
	mu   sync.Mutex
	runs int
}

func (c *counter) call(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs++
	return nil
}

// errOwn is an error of an activity that nobody puts back.
var errOwn = errors.New("the API has no such order")

// typeOf returns the type of the ApplicationError in err.
func typeOf(err error) string {
	var failure *temporal.ApplicationError
	if !errors.As(err, &failure) {
		return "none"
	}
	return failure.Type()
}
