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

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue/line"
	"github.com/dripfeed/dripfeed/transport"
)

// unpaced lets all activities run: what paces them is inside of them.
func unpaced(activity.Info) (outbound.Limiter, outbound.Cost) { return nil, outbound.Cost{} }

// An activity whose http.Client is paced is put back, too, and charged once.
func TestAPacedClientInsidePutsItsActivityBack(t *testing.T) {
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

// Without its ticket the line inside would send it behind all others each time.
func TestALineInsideOfAnActivityHasItsTicket(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		var seen []string
		w := &world{limiter: unpaced, tickets: &kept{}, activities: call("Call", func(ctx context.Context) error {
			if seen = append(seen, ticketIn(ctx)); len(seen) == 1 {
				return &url.Error{Op: "Get", Err: &line.Later{In: time.Millisecond, Ticket: "a place"}}
			}
			return nil
		})}
		if _, err := run(w, order{Activity: "Call"}); err != nil || len(seen) != 2 || !strings.HasPrefix(seen[1], "a place") {
			t.Errorf("%v, tickets %q", err, seen)
		}
	})
}

// What the activity says itself stands, however it is paced.
func TestAnActivitysOwnErrorsStay(t *testing.T) {
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
		"never":          {err: &outbound.CostError{Err: outbound.ErrInvalidCost}, attempts: 1, typ: TypeCost},
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
