package temporaljobs

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// errOwn is an error of an activity that does not reschedule it.
var errOwn = errors.New("the API has no such order")

// Temporal makes an attempt for each Later, at its time and with its ticket, and fails an activity for nothing else.
func TestInterceptor_ReschedulesWithTicket(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		order   // the RetryPolicy's own delay is an hour: what comes sooner comes by the interceptor's
		tickets *jobtest.Tickets
		answers []error // of the limiter
		fails   []error // of the activity
		want    string  // the attempts that come to the limiter, with their tickets
		used    string  // of tickets
		fatal   string  // the type of the error
		runs    int
		logs    string
	}{
		"tickets": {
			tickets: &jobtest.Tickets{}, answers: []error{jobtest.Later(20*ms, "a"), &jobs.Later{Ticket: "a", Err: store.ErrUnavailable}, jobtest.Later(ms, ""), jobtest.Later(2*ms, "b")},
			want: " 1 2a 3a 4a 5b", used: " a:1h0m0.02s get(a) a:1h0m0s get(a) get(a) b:1h0m0.002s get(b)", runs: 1,
		},
		"last attempt waits": {
			order: order{Attempts: 1}, tickets: &jobtest.Tickets{}, answers: []error{jobtest.Later(ms, "a"), jobtest.Later(2*ms, "a"), jobtest.Later(3*ms, "a")},
			want: " 1 1a 1a 1a", runs: 1,
		},
		"third attempt is the last": {
			order: order{Attempts: 3}, tickets: &jobtest.Tickets{}, answers: []error{jobtest.Later(ms, "a"), jobtest.Later(2*ms, "a"), jobtest.Later(3*ms, "a"), jobtest.Later(4*ms, "a")},
			want: " 1 2a 3a 3a 3a", used: " a:1h0m0.001s get(a) a:1h0m0.002s get(a)", runs: 1,
		},
		// An activity that came back without its ticket would get a reservation behind all others, each time.
		"no tickets": {answers: []error{jobtest.Later(3*ms, "a"), jobtest.Later(ms, "b")}, want: " 1 1a 1b", runs: 1},
		"no tickets, the workflow keeps one": {
			order: order{Await: true}, answers: []error{jobtest.Later(3*ms, "a"), jobtest.Later(ms, ""), jobtest.Later(ms, "b")}, want: " 1a 2a 3a 3b", runs: 1,
		},
		"tickets are unavailable": {tickets: &jobtest.Tickets{Err: errors.New("away")}, answers: []error{jobtest.Later(ms, "a")}, want: " 1 2", used: " a:1h0m0.001s get()", runs: 1, logs: "WARN The ticket"},
		// Each attempt of a local activity has another name, so its ticket cannot be kept.
		"local": {
			order: order{Local: true}, tickets: &jobtest.Tickets{}, answers: []error{jobtest.Later(5*ms, ""), jobtest.Later(5*ms, "a")},
			want: " 1 2 2a", runs: 1,
		},
		"last attempt ends before the reservation": {
			order: order{Attempts: 1}, answers: []error{jobtest.Later(time.Hour, "")}, want: " 1", fatal: "Later", logs: "ERROR Activity error.",
		},
		"all attempts end before the reservation": {
			order: order{InAll: 50 * time.Second}, answers: []error{jobtest.Later(time.Hour, "a")}, want: " 1", fatal: TypeLater,
		},
		"cost above capacity": {
			answers: []error{&outbound.CostError{Key: "k", Err: outbound.ErrTooLarge}}, want: " 1", fatal: TypeCost, logs: "ERROR Activity error.",
		},
		"invalid cost": {
			answers: []error{fmt.Errorf("own: %w", &outbound.CostError{Err: outbound.ErrInvalid})}, want: " 1", fatal: TypeCost, logs: "ERROR Activity error.",
		},
		// An attempt uses its reservation: the next one books again.
		"the activity fails": {
			order: order{Interval: ms}, tickets: &jobtest.Tickets{}, answers: []error{jobtest.Later(ms, "a")}, fails: []error{errOwn},
			want: " 1 2a 3", used: " a:1h0m0.001s get(a) :1h0m0s get()", runs: 2, logs: "ERROR Activity error.",
		},
	} {
		inBoth(t, name, func(t *testing.T, w *world) {
			w.answer, w.call = jobtest.InTurn(c.answers...), jobtest.InTurn(c.fails...)
			var tickets jobtest.Tickets
			if c.tickets != nil {
				tickets.Err, w.tickets = c.tickets.Err, &tickets
			}
			took, err := w.run(c.order)
			if w.arrivals != c.want || typeOf(err) != c.fatal || w.runs != c.runs || w.done != c.runs || took > 30*time.Minute {
				t.Errorf("%v after %v; attempts%s, %d runs, %d calls have ended", err, took, w.arrivals, w.runs, w.done)
			}
			tickets.Check(t, c.used)
			if text := w.log.text(); !strings.HasPrefix(text, c.logs) || c.logs == "" && text != "" {
				t.Errorf("logged %q", text)
			}
		})
	}
}

// NewInterceptor without a limiter fails each activity with an error that names the mistake.
func TestInterceptor_NilLimiterIsAnError(t *testing.T) {
	limiter, cost := NewInterceptor(nil, nil).(*pacer).limiter(activity.Info{})
	if _, err := limiter.Acquire(t.Context(), cost); !errors.Is(err, outbound.ErrInvalid) || !strings.Contains(err.Error(), "limiter of NewInterceptor") {
		t.Error(err)
	}
}

// The tickets of activities that no workflow has started differ by the activities' own runs.
func TestTickets_ActivityWithoutAWorkflow(t *testing.T) {
	if got := name(activity.Info{ActivityRunID: "run", ActivityID: "id"}); got != "run:id" {
		t.Error(got)
	}
}

// unpaced lets all activities run: what paces them is inside of them.
func unpaced(activity.Info) (outbound.Limiter, outbound.Cost) { return nil, outbound.Cost{} }

// A Scheduler inside of an activity has the ticket in the next attempt. Another error uses the reservation.
func TestInterceptor_SchedulerInsideHasTheTicket(t *testing.T) {
	inBoth(t, "five attempts", func(t *testing.T, w *world) {
		inside := func(err error) error { return &url.Error{Op: "Get", Err: err} }
		errs := jobtest.InTurn(inside(jobtest.Later(time.Millisecond, "a")), errOwn, inside(jobtest.Later(time.Millisecond, "b")), inside(jobtest.Later(time.Millisecond, "")))
		var seen []string
		w.limiter, w.tickets, w.call = unpaced, &jobtest.Tickets{}, func(ctx context.Context, n int) error {
			seen = append(seen, ticketIn(ctx))
			return errs(ctx, n)
		}
		if _, err := w.run(order{Interval: time.Millisecond}); err != nil || fmt.Sprintf("%q", seen) != `["" "a" "" "b" ""]` {
			t.Errorf("%v, tickets %q", err, seen)
		}
	})
}

// The errors of an activity stay, whether it is paced or not, except those of a limiter inside of it.
func TestInterceptor_KeepsTheActivitysErrors(t *testing.T) {
	throttled := &url.Error{Op: "Get", Err: &outbound.ThrottledError{RetryAfter: time.Millisecond}}
	for name, c := range map[string]struct {
		order
		err   error
		runs  int
		fatal string
	}{
		"plain":              {order{Attempts: 2, Interval: time.Millisecond}, errOwn, 2, ""},
		"of the application": {order{}, temporal.NewNonRetryableApplicationError("no", "Own", throttled), 1, "Own"},
		"rate limited":       {order{Attempts: 3}, throttled, 3, "Error"}, // the last attempt fails with the activity's error
		"cost":               {order{}, &outbound.CostError{Err: outbound.ErrInvalid}, 1, TypeCost},
		"cost, wrapped":      {order{}, fmt.Errorf("order: %w", &outbound.CostError{Err: outbound.ErrTooLarge}), 1, TypeCost},
	} {
		for _, limiter := range []string{"paced", "unpaced"} {
			t.Run(name+" "+limiter, inSuite(func(t *testing.T, w *world) {
				w.call = func(context.Context, int) error { return c.err }
				permits := c.runs
				if limiter == "unpaced" {
					w.limiter, permits = unpaced, 0
				}
				took, err := w.run(c.order)
				if err == nil || typeOf(err) != c.fatal || w.runs != c.runs || w.done != permits || took > 30*time.Minute {
					t.Errorf("%v, of the type %q, after %v and %d runs; %d calls have ended", err, typeOf(err), took, w.runs, w.done)
				}
			}))
		}
	}
}

// An activity whose own time is over fails after its attempts, as any other that fails.
func TestInterceptor_OwnTimeOverIsAFailure(t *testing.T) {
	for name := range jobtest.OwnTime() {
		inBoth(t, name, func(t *testing.T, w *world) {
			var laters int
			w.limiter, w.call = unpaced, func(ctx context.Context, _ int) error {
				err := jobtest.OwnTime()[name](ctx) // the clock of the testsuite is not that of its limiter
				if _, ok := jobs.AsLater(err); ok {
					laters++
				}
				return err
			}
			_, err := w.run(order{Attempts: 3, Interval: time.Second})
			if typeOf(err) == TypeLater || err == nil || w.runs != 3 || laters > 0 {
				t.Errorf("%d runs, %d laters: %v", w.runs, laters, err)
			}
		})
	}
}
