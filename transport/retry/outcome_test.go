package retry

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// The table of the package doc: the cause alone decides what comes back, for the client and for its
// StandardClient, whatever RetryMax is, and never a response with an error.
func TestOutcome_TheCauseDecides(t *testing.T) {
	hour := &outbound.ThrottledError{Key: "b", RetryAfter: time.Hour}
	down := &outbound.StoreError{Op: "book", Key: "b", Err: errors.New("down")}
	always := func(err error) outbound.Limiter { return &refusing{errs: repeat(err, 99)} }
	waits := limiterFunc(func(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
		<-ctx.Done()
		if ctx.Err() == context.DeadlineExceeded {
			return outbound.Permit{}, &outbound.ThrottledError{Key: "b", Err: ctx.Err()}
		}
		return outbound.Permit{}, ctx.Err()
	})
	hangs := base(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	})
	cut := base(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, reset.err
	})
	for name, c := range map[string]struct {
		rt       *transport.Transport
		deadline time.Duration // 0: none
		cancel   time.Duration // 0: never
		status   int           // 0: an error
		is       error
		bare     bool // no Error
	}{
		"a success":                           {rt: over(play(status(200))), status: 200},
		"a mistake":                           {rt: over(play(status(404))), status: 404},
		"refused to the end":                  {rt: over(play(status(429))), status: 429},
		"refused for too long":                {rt: over(play(status(429, "Retry-After", "3600"))), status: 429},
		"refused, with 3 s left of 10":        {rt: over(play(status(429, "Retry-After", "10"))), deadline: 3 * time.Second, status: 429},
		"overloaded":                          {rt: over(play(status(503, "Retry-After", "3600"))), status: 503},
		"failed to the end":                   {rt: over(play(status(500))), status: 500},
		"the limiter refuses":                 {rt: &transport.Transport{Limiter: always(hour)}, is: outbound.ErrThrottled},
		"it refuses, with 3 s left":           {rt: &transport.Transport{Limiter: always(hour)}, deadline: 3 * time.Second, is: context.DeadlineExceeded},
		"it refuses, with an OnRefusal":       {rt: &transport.Transport{Limiter: always(hour), OnRefusal: transport.TooManyRequests}, status: 429},
		"it refuses what the API has refused": {rt: &transport.Transport{Base: play(status(429)), Limiter: &refusing{errs: append([]error{nil}, repeat(hour, 99)...)}}, is: outbound.ErrThrottled},
		"a cost that can never go":            {rt: &transport.Transport{Limiter: always(outbound.ErrTooLarge)}, is: outbound.ErrTooLarge},
		"a store that fails":                  {rt: &transport.Transport{Limiter: always(down)}, is: down},
		"no transport":                        {is: outbound.ErrInvalid},
		"a broken connection":                 {rt: over(play(reset)), is: reset.err},
		"no connection":                       {rt: over(play(dial)), is: dial.err},
		"cancelled in the limiter":            {rt: &transport.Transport{Limiter: waits}, cancel: time.Second, is: context.Canceled, bare: true},
		"cancelled between two refusals":      {rt: &transport.Transport{Limiter: always(&outbound.ThrottledError{})}, cancel: time.Second, is: context.Canceled, bare: true},
		"cancelled in an attempt":             {rt: over(hangs), cancel: time.Second, is: context.Canceled, bare: true},
		"cut off by the cancellation":         {rt: over(cut), cancel: time.Second, is: context.Canceled, bare: true},
		"cancelled in a pause":                {rt: over(play(reset)), cancel: 500 * time.Millisecond, is: context.Canceled, bare: true},
		"the deadline passes in the limiter":  {rt: &transport.Transport{Limiter: waits}, deadline: time.Second, is: outbound.ErrThrottled},
		"the deadline passes in an attempt":   {rt: over(hangs), deadline: time.Second, is: context.DeadlineExceeded, bare: true},
	} {
		for way, send := range ways {
			for _, retryMax := range []int{0, 4} {
				again := name == "it refuses what the API has refused" || name == "cancelled in a pause"
				synctest.Test(t, func(t *testing.T) {
					client := Config{MaxWait: time.Minute}.NewClient(c.rt)
					require.Nil(t, client.Logger)
					client.RetryMax = retryMax
					if again && retryMax == 0 {
						return
					}
					if c.rt != nil {
						if l, ok := c.rt.Limiter.(*refusing); ok {
							l.asked.Store(0)
						}
					}
					ctx, cancel := context.WithCancel(within(t, c.deadline))
					defer cancel()
					if c.cancel > 0 {
						time.AfterFunc(c.cancel, cancel)
					}
					resp, err := send(client, requestWith(t, http.MethodGet, "none").WithContext(ctx))
					if c.status > 0 {
						require.NoError(t, err, "%s, %s", name, way)
						require.Equal(t, c.status, resp.StatusCode, "%s, %s", name, way)
						_, err = resp.Body.Read(make([]byte, 1))
						require.NoError(t, err, "%s, %s: unread and open", name, way)
						require.NoError(t, resp.Body.Close())
						return
					}
					require.Nil(t, resp)
					require.ErrorIs(t, err, c.is, "%s, %s", name, way)
					var e *Error
					require.Equal(t, !c.bare, errors.As(err, &e), "%s, %s: %v", name, way, err)
					if errors.Is(err, outbound.ErrThrottled) {
						require.Equal(t, "b", throttled(t, err).Key, "%s, %s", name, way)
						require.Equal(t, c.deadline > 0, errors.Is(err, context.DeadlineExceeded))
					}
				})
			}
		}
	}
}
