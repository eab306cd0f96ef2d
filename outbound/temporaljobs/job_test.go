package temporaljobs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue/jobs"
	"github.com/dripfeed/dripfeed/transport"
)

// unpaced lets all activities run: what paces them is inside of them.
func unpaced(activity.Info) (outbound.Limiter, outbound.Cost) { return nil, outbound.Cost{} }

// An activity whose http.Client is paced is rescheduled, too, and charged once.
func TestInterceptor_PacedClientInsideReschedules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(10, time.Second)}}
		bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(10)))
		client := &http.Client{Transport: &transport.Transport{Base: api, Limiter: bucket}}
		w := &world{bubble: true, limiter: unpaced, activities: call("Call", func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com", nil)
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			return resp.Body.Close()
		})}
		begin := time.Now()
		_, err := w.runInSuite(order{Activity: "Call", Activities: n})
		if r := api.Report(); err != nil || r.Refused != 0 || r.Arrivals != n {
			t.Errorf("%v, %d calls, %d refused", err, r.Arrivals, r.Refused)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("20 calls at 10 a second took %v", took)
		}
		if bad := w.log.text(); bad != "" {
			t.Errorf("logged:\n%s", bad)
		}
	})
}

// Without its ticket the Scheduler inside would send it behind all others each time.
func TestInterceptor_SchedulerInsideHasTheTicket(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		var seen []string
		w := &world{limiter: unpaced, tickets: &kept{}, activities: call("Call", func(ctx context.Context) error {
			if seen = append(seen, ticketIn(ctx)); len(seen) == 1 {
				return &url.Error{Op: "Get", Err: &jobs.Later{In: time.Millisecond, Ticket: "a place"}}
			}
			return nil
		})}
		if _, err := run(w, order{Activity: "Call"}); err != nil || len(seen) != 2 || !strings.HasPrefix(seen[1], "a place") {
			t.Errorf("%v, tickets %q", err, seen)
		}
	})
}

// What the activity says itself stands, however it is paced.
func TestInterceptor_KeepsTheActivitysErrors(t *testing.T) {
	full := &url.Error{Op: "Get", Err: &outbound.ThrottledError{RetryAfter: time.Millisecond}}
	for name, c := range map[string]struct {
		err      error
		last     bool
		attempts int32
		typ      string
		cause    string
	}{
		"plain":          {err: errOwn, attempts: 2, cause: errOwn.Error()},
		"its own":        {err: temporal.NewNonRetryableApplicationError("no", "Own", full), attempts: 1, typ: "Own"},
		"in it":          {err: full, attempts: 3, typ: "Error"}, // the last attempt fails with what the activity said
		"never":          {err: &outbound.CostError{Err: outbound.ErrInvalid}, attempts: 1, typ: TypeCost},
		"never, wrapped": {err: fmt.Errorf("order: %w", &outbound.CostError{Err: outbound.ErrTooLarge}), attempts: 1, typ: TypeCost},
	} {
		for _, limiter := range []string{"paced", "unpaced"} {
			t.Run(name+" "+limiter, inBubble(func(t *testing.T) {
				s := &script{answer: func(context.Context, int) error { return nil }}
				var attempts int32
				w := &world{limiter: s.paced, activities: call("Call", func(ctx context.Context) error {
					attempts = activity.GetInfo(ctx).Attempt
					return c.err
				})}
				if limiter == "unpaced" {
					w.limiter = unpaced
				}
				o := order{Activity: "Call", Attempts: 3, Interval: time.Millisecond}
				if name == "plain" {
					o.Attempts = 2
				}
				_, err := w.runInSuite(o)
				var failure *temporal.ApplicationError
				if !errors.As(err, &failure) || failure.Type() != c.typ || attempts != c.attempts {
					t.Errorf("%v, of the type %q, after %d attempts", err, failure.Type(), attempts)
				}
				if limiter == "paced" && s.done != int(attempts) {
					t.Errorf("%d calls ended after %d attempts", s.done, attempts)
				}
			}))
		}
	}
}

// The next attempt comes when the API's pause is over, and not before, to be rescheduled. It is the same
// error for whoever looks at it, and the RetryPolicy counts where it waits for longer.
func TestInterceptor_RefusedActivityRetriesAfterThePause(t *testing.T) {
	for name, c := range map[string]struct {
		fails           error
		pause, interval time.Duration
		want            time.Duration
	}{
		"pause":   {errOwn, 2 * time.Second, time.Millisecond, 2 * time.Second},
		"policy":  {errOwn, time.Second, 2 * time.Second, 2 * time.Second},
		"wrapped": {&url.Error{Op: "Get", Err: errOwn}, 2 * time.Second, time.Millisecond, 2 * time.Second},
		"its own": {temporal.NewApplicationErrorWithOptions("no", "Own", temporal.ApplicationErrorOptions{NextRetryDelay: 3 * time.Second}), time.Second, time.Millisecond, 3 * time.Second},
		// Its NextRetryDelay is lost on the way to the server.
		"its own, wrapped": {fmt.Errorf("order: %w", temporal.NewApplicationErrorWithOptions("no", "Own", temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond})), 2 * time.Second, time.Millisecond, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
				calls := jobs.New(outbound.Must(outbound.NewBucket("api", outbound.PerSecond(100))), jobs.Config{PollInterval: time.Millisecond, HeadStart: time.Millisecond}) // who comes early is put back
				var begun []time.Time
				var attempts []int32
				s := &script{answer: func(context.Context, int) error { return nil }}
				w := &world{bubble: true, tickets: &kept{}, limiter: func(i activity.Info) (outbound.Limiter, outbound.Cost) {
					s.paced(i)
					return calls, outbound.Cost{1}
				}, activities: call("Call", func(ctx context.Context) error {
					begun, attempts = append(begun, time.Now()), append(attempts, activity.GetInfo(ctx).Attempt)
					if len(begun) == 1 {
						outbound.PermitFrom(ctx).Refused(c.pause)
						return c.fails
					}
					return nil
				})}
				took, err := run(w, order{Activity: "Call", Interval: c.interval})
				if err != nil || len(begun) != 2 || attempts[1] != 2 && c.pause > c.interval {
					t.Fatalf("%v, attempts %v", err, attempts)
				}
				// The delay of a RetryPolicy is by the testsuite's own clock, so that the pause goes on behind it.
				if took = max(took, begun[1].Sub(begun[0])); took < c.want || took > c.want+5*time.Second {
					t.Errorf("it comes back after %v, want %v", took, c.want)
				}
			})
		})
	}
}

// Only the delay is new: message, type and cause are as the SDK makes them.
func TestInterceptor_PauseKeepsTheError(t *testing.T) {
	for _, err := range []error{errOwn, errors.New("plain"), &url.Error{Op: "Get", URL: "u", Err: errOwn}, fmt.Errorf("of: %w", errOwn), temporal.NewTimeoutError(enums.TIMEOUT_TYPE_HEARTBEAT, nil)} {
		t.Run(fmt.Sprintf("%T", err), func(t *testing.T) {
			c := temporal.GetDefaultFailureConverter()
			made := c.ErrorToFailure((&turn{pause: time.Minute}).afterPause(err))
			if info := made.GetApplicationFailureInfo(); info != nil {
				if info.GetNextRetryDelay().AsDuration() != time.Minute {
					t.Errorf("%v", made)
				}
				info.NextRetryDelay = nil
			}
			if want := c.ErrorToFailure(err); made.String() != want.String() {
				t.Errorf("%v, want %v", made, want)
			}
		})
	}
	if err := (&turn{pause: time.Minute}).afterPause(activity.ErrResultPending); err != activity.ErrResultPending {
		t.Errorf("%v", err)
	}
	for attempt, want := range map[int32]time.Duration{1: time.Second, 3: 4 * time.Second, 8: time.Minute, 4000: time.Minute} {
		p := &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: time.Minute}
		if got := (&turn{info: activity.Info{Attempt: attempt, RetryPolicy: p}}).backoff(); got != want {
			t.Errorf("attempt %d: %v, want %v", attempt, got, want)
		}
	}
}
