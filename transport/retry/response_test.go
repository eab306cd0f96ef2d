package retry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// The last response is returned unread and open, as an SDK needs it. X-Should-Retry is false on a copy of its
// header if its request was sent as often as allowed. Each response is closed once.
func TestLastResponse_IsUnreadAndMarked(t *testing.T) {
	soon, late := status(429, "Retry-After", "1"), status(429, "Retry-After", "3600", "X-Should-Retry", "true")

	for name, c := range map[string]struct {
		steps    []step
		limiter  outbound.Limiter
		retryMax int
		policy   retryablehttp.CheckRetry
		attempts int
		status   int
		marked   bool
	}{
		"refused to the end":        {steps: []step{soon}, retryMax: 4, attempts: 5, status: 429, marked: true},
		"refused, RetryMax 2":       {steps: []step{soon}, retryMax: 2, attempts: 3, status: 429, marked: true},
		"refused for too long":      {steps: []step{late}, retryMax: 4, attempts: 1, status: 429, marked: true},
		"overloaded for too long":   {steps: []step{status(503, "Retry-After", "3600")}, retryMax: 4, attempts: 1, status: 503, marked: true},
		"failed to the end":         {steps: []step{status(500)}, retryMax: 4, attempts: 5, status: 500, marked: true},
		"failed, without a header":  {steps: []step{{status: 503}}, retryMax: 4, attempts: 5, status: 503, marked: true},
		"the limiter refuses":       {limiter: &refusing{errs: repeat(full(time.Hour), 99)}, retryMax: 4, status: 429, marked: true},
		"a success":                 {steps: []step{status(200)}, retryMax: 4, attempts: 1, status: 200},
		"a success in the end":      {steps: []step{status(429), status(200)}, retryMax: 4, attempts: 2, status: 200},
		"a mistake":                 {steps: []step{status(400)}, retryMax: 4, attempts: 1, status: 400},
		"from a cache":              {steps: []step{status(429, "X-From-Cache", "1")}, retryMax: 4, attempts: 1, status: 429},
		"not implemented":           {steps: []step{status(501)}, retryMax: 4, attempts: 1, status: 501},
		"the SDK retries, refused":  {steps: []step{soon}, attempts: 1, status: 429},
		"the SDK retries, failed":   {steps: []step{status(503)}, attempts: 1, status: 503},
		"another policy, refused":   {steps: []step{soon}, retryMax: 2, policy: retryablehttp.DefaultRetryPolicy, attempts: 3, status: 429},
		"another policy, failed":    {steps: []step{status(503)}, retryMax: 2, policy: retryablehttp.DefaultRetryPolicy, attempts: 3, status: 503},
		"another policy, a success": {steps: []step{status(200)}, retryMax: 2, policy: retryablehttp.DefaultRetryPolicy, attempts: 1, status: 200},
	} {
		for way, send := range ways {
			synctest.Test(t, func(t *testing.T) {
				api := play(c.steps...)
				rt := &transport.Transport{Base: api, Limiter: c.limiter, OnRefusal: transport.TooManyRequests}
				client := Config{MaxWait: 30 * time.Second}.NewClient(rt)
				client.RetryMax = c.retryMax
				if c.policy != nil {
					client.CheckRetry = c.policy
				}
				resp, err := send(client, requestWith(t, http.MethodGet, "none"))
				require.NoError(t, err, name, way)
				require.Len(t, api.went(), c.attempts, name, way)
				require.Equal(t, c.status, resp.StatusCode, name, way)
				require.Equal(t, c.marked, resp.Header.Get("X-Should-Retry") == "false", name, way)
				if len(api.bodies) > 0 {
					require.Zero(t, api.bodies[len(api.bodies)-1].closed.Load(), name, way)
					whole(t, resp, http.StatusText(c.status))
				}
				api.closed(t, name, way)
			})
		}
	}
	require.Equal(t, status(429, "Retry-After", "3600", "X-Should-Retry", "true"), late, "the header may be a cache's")
}

// whole asserts that the program can read the response, and closes it.
func whole(t *testing.T, resp *http.Response, want string) {
	t.Helper()
	text := must(io.ReadAll(resp.Body))
	require.Equal(t, want, string(text))
	require.NoError(t, resp.Body.Close())
}

// An SDK of AWS announces how often it sends a request. The client leaves the responses to it, and waits for
// the limiter.
func TestAWS_ResponsesAreLeftToTheSDK(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for header, left := range map[string]bool{
			"attempt=1; max=3":                       true,
			"ttl=20260101T000000Z; attempt=3; max=3": true,
			"attempt=1; max=1":                       false,
			"attempt=1":                              true, // without a bound
			"ttl=20260101T000000Z":                   false,
			"":                                       false,
			"attempt=1; max=":                        false,
			"attempt=1; max=99999999999999999999":    false,
			"attempt=1; max=three; max=3":            false,
			"max=2":                                  true,
			"attempt=1; max=1; ttl=20260101T000000Z ": false,
		} {
			for _, what := range []step{status(429, "Retry-After", "1"), status(500)} {
				req := requestWith(t, http.MethodGet, "none")
				req.Header.Set("Amz-Sdk-Request", header)
				api := play(what)
				client := paced(0, api, &refusing{errs: []error{full(3 * time.Second)}})
				resp := must(client.StandardClient().Do(req))
				require.Equal(t, left, resp.Header.Get("X-Should-Retry") == "", header)
				whole(t, resp, http.StatusText(what.status))
				about(t, 3*time.Second, 0.1, api.went()[0])
				require.Equal(t, left, len(api.went()) == 1, header)
			}
			// The SDK would not know an error's cause, so the client sends again after errors.
			req := requestWith(t, http.MethodGet, "none")
			req.Header.Set("Amz-Sdk-Request", header)
			api := play(reset)
			_, err := NewClient(over(api)).StandardClient().Do(req)
			require.False(t, ended(t, err).RetryableError())
			require.Len(t, api.went(), 5)
		}
	})
}

// The table of the package doc: the cause alone decides which error comes back if no response does, for the client and
// for its StandardClient, whatever RetryMax is.
func TestOutcome_TheCauseDecides(t *testing.T) {
	hour := full(time.Hour)
	down := &outbound.StoreError{Op: "book", Key: "b", Err: errors.New("down")}
	always := func(err error) outbound.Limiter { return &refusing{errs: repeat(err, 99)} }
	waits := limiterFunc(func(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
		<-ctx.Done()
		if ctx.Err() == context.DeadlineExceeded {
			return outbound.Permit{}, &outbound.ThrottledError{Key: "api", Err: ctx.Err()}
		}
		return outbound.Permit{}, ctx.Err()
	})
	cut := base(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, reset.err
	})
	for name, c := range map[string]struct {
		rt       *transport.Transport
		deadline time.Duration // 0: none
		cancel   time.Duration // 0: never
		is       error
		bare     bool // no Error
	}{
		"the limiter refuses":                 {rt: &transport.Transport{Limiter: always(hour)}, is: outbound.ErrThrottled},
		"it refuses, with 3 s left":           {rt: &transport.Transport{Limiter: always(hour)}, deadline: 3 * time.Second, is: context.DeadlineExceeded},
		"it refuses what the API has refused": {rt: &transport.Transport{Base: play(status(429)), Limiter: &refusing{errs: append([]error{nil}, repeat(hour, 99)...)}}, is: outbound.ErrThrottled},
		"a cost that can never go":            {rt: &transport.Transport{Limiter: always(outbound.ErrTooLarge)}, is: outbound.ErrTooLarge},
		"a store that fails":                  {rt: &transport.Transport{Limiter: always(down)}, is: down},
		"no transport":                        {is: outbound.ErrInvalid},
		"a broken connection":                 {rt: over(play(reset)), is: reset.err},
		"no connection":                       {rt: over(play(dial)), is: dial.err},
		"cancelled in the limiter":            {rt: &transport.Transport{Limiter: waits}, cancel: time.Second, is: context.Canceled, bare: true},
		"cancelled between two refusals":      {rt: &transport.Transport{Limiter: always(&outbound.ThrottledError{})}, cancel: time.Second, is: context.Canceled, bare: true},
		"cancelled in an attempt":             {rt: over(base(hangs)), cancel: time.Second, is: context.Canceled, bare: true},
		"cut off by the cancellation":         {rt: over(cut), cancel: time.Second, is: context.Canceled, bare: true},
		"cancelled in a pause":                {rt: over(play(reset)), cancel: 500 * time.Millisecond, is: context.Canceled, bare: true},
		"the deadline passes in the limiter":  {rt: &transport.Transport{Limiter: waits}, deadline: time.Second, is: outbound.ErrThrottled},
		"the deadline passes in an attempt":   {rt: over(base(hangs)), deadline: time.Second, is: context.DeadlineExceeded, bare: true},
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
					require.Nil(t, resp)
					require.ErrorIs(t, err, c.is, "%s, %s", name, way)
					var e *Error
					require.Equal(t, !c.bare, errors.As(err, &e), "%s, %s: %v", name, way, err)
					if errors.Is(err, outbound.ErrThrottled) {
						require.Equal(t, "api", throttled(t, err).Key, "%s, %s", name, way)
						require.Equal(t, c.deadline > 0, errors.Is(err, context.DeadlineExceeded))
					}
				})
			}
		}
	}
}

// A response is a refusal or a failure by its status, its headers and the profile.
func TestSignal_OfAResponse(t *testing.T) {
	const s = time.Second
	rate := func(d time.Duration) signal { return signal{throttled: true, refused: true, wait: d} }
	busy := func(d time.Duration) signal { return signal{throttled: true, wait: d} }
	synctest.Test(t, func(t *testing.T) { // the time is 2000-01-01T00:00:00Z
		for _, c := range []struct {
			profile *profile.Profile
			answer  step
			want    signal
		}{
			{nil, status(200, "Retry-After", "5"), signal{}},
			{nil, status(200, "RateLimit-Limit", "5", "RateLimit-Remaining", "0", "RateLimit-Reset", "7"), signal{}},
			{nil, status(301, "Retry-After", "5"), signal{}},
			{nil, status(403, "Retry-After", "5"), signal{}},
			{nil, status(500, "Retry-After", "5"), signal{}},
			{nil, status(503), signal{}},
			{nil, status(503, "Retry-After", "0"), signal{}},
			{nil, status(503, "Retry-After", "5"), busy(5 * s)},
			{nil, status(529), signal{}},
			{nil, status(529, "Retry-After", "5"), busy(5 * s)},
			{nil, status(429), rate(0)},
			{nil, status(429, "Retry-After", "0"), rate(0)},
			{nil, status(429, "Retry-After", "2.5"), rate(2500 * time.Millisecond)},
			{nil, status(429, "Retry-After", "5", "Age", "1"), signal{}},
			{nil, status(429, "Retry-After", "5", "X-From-Cache", "1"), signal{}},
			{nil, status(429, "Retry-After", "Sat, 01 Jan 2000 00:00:09 GMT"), rate(10 * s)},
			{nil, status(429, "RateLimit-Limit", "5", "RateLimit-Remaining", "0", "RateLimit-Reset", "7"), rate(7 * s)},
			{profile.GitHub, status(403, "Retry-After", "60"), rate(60 * s)},
			{profile.GitHub, status(403), signal{}},
			{&profile.Profile{Refusals: []int{403}, Reason: profile.Concurrency}, status(403), rate(0)},
			{&profile.Profile{Refusals: []int{409}, Reason: profile.Lock}, status(409), rate(0)},
			{profile.GitHub, status(503, "Retry-After", "5"), busy(5 * s)},
			{profile.ShopifyGraphQL, status(503, "Retry-After", "5"), busy(5 * s)},
			{profile.Mailchimp, status(529, "Retry-After", "5"), busy(5 * s)},
			{profile.AWS, status(503, "X-Amzn-Errortype", "SlowDown"), rate(0)},
			{&profile.Profile{Refusals: []int{503}}, status(503), signal{}},
			{&profile.Profile{Refusals: []int{503}, Reason: profile.Quota}, status(503, "Retry-After", "5"), busy(5 * s)},
			{profile.Stripe, status(429, "Stripe-Rate-Limited-Reason", "global-rate"), rate(0)},
			{profile.Stripe, status(429, "Stripe-Rate-Limited-Reason", "global-concurrency"), rate(0)},
		} {
			resp := &http.Response{StatusCode: c.answer.status, Header: c.answer.header, Body: newBody("")}
			got := classify(c.profile, resp)
			require.Equal(t, c.want, got, "%d %v", c.answer.status, c.answer.header)
		}
	})
}

// No wait mends an account without credit, or a call above what the API ever admits (github.com/Aider-AI/aider/issues/1880),
// whatever else the response says.
func TestSignal_PermanentIfNoWaitHelps(t *testing.T) {
	const tooLarge = `"message":"Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 36278.","type":"tokens",`
	for what, hopeless := range map[string]bool{
		`"code":"insufficient_quota"`: true, `"code":"billing_hard_limit_reached"`: true,
		`"code":"rate_limit_exceeded"`: false, tooLarge + `"code":"rate_limit_exceeded"`: true,
	} {
		for _, header := range [][]string{
			nil,
			{"X-Ratelimit-Limit-Requests", "5000", "X-Ratelimit-Remaining-Requests", "4999", "X-Ratelimit-Reset-Requests", "12ms"},
			{"Retry-After", "20"}, {"Retry-After", "0"},
		} {
			resp := &http.Response{StatusCode: 429, Header: status(429, header...).header, Body: newBody(`{"error":{` + what + `}}`), ContentLength: -1}
			resp.Header.Set("Content-Type", "application/json")
			require.Equal(t, hopeless, classify(profile.OpenAI, resp).permanent, "%s %v", what, header)
		}
	}
}

// classify reads a response as the transport does.
func classify(p *profile.Profile, resp *http.Response) signal {
	s := p.Read(resp, time.Now())
	return signalOf(resp.StatusCode, &s)
}
