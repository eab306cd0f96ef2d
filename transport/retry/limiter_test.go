package retry

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// What becomes of the limiter's errors.
func TestLimiter_ItsErrors(t *testing.T) {
	bubble(t, "If RetryAfter is zero, the client asks after 10 ms, doubled up to 1 s", func(t *testing.T) {
		var asked []time.Duration
		start := time.Now()
		_, err := get(t, paced(30*time.Second, play(status(200)), limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) {
			asked = append(asked, time.Since(start))
			return outbound.Permit{}, full(0)
		})))
		require.ErrorIs(t, err, outbound.ErrThrottled)
		want := 10 * time.Millisecond
		for i := range asked[1:] {
			about(t, want, 0.5, asked[i+1]-asked[i])
			want = min(2*want, time.Second)
		}
		require.Less(t, time.Since(start), 30*time.Second+1)
		require.Greater(t, time.Since(start), 28*time.Second)
	})
	bubble(t, "An error of the limiter's that no wait can mend ends the request", func(t *testing.T) {
		for _, reason := range []error{
			&outbound.CostError{Key: "api", Err: outbound.ErrTooLarge}, &outbound.CostError{Key: "api", Err: outbound.ErrInvalid},
			&outbound.LimitError{Key: "api"}, outbound.ErrInvalid, queue.ErrClosed, context.Canceled, context.DeadlineExceeded, errors.New("own"),
		} {
			api, limiter := play(status(200)), &refusing{errs: []error{reason}}
			_, err := get(t, paced(0, api, limiter))
			require.ErrorIs(t, err, reason)
			require.EqualValues(t, 1, limiter.asked.Load(), "%v", reason)
			require.Zero(t, time.Since(api.start))
		}
	})
	bubble(t, "A store's error is a failure, after which any method may be sent", func(t *testing.T) {
		down := &outbound.StoreError{Op: "book", Key: "api", Err: errors.New("down")}
		api := play(status(200))
		_, err := paced(0, api, &refusing{errs: repeat(down, 2)}).Post(address, "text/plain", []byte("text"))
		require.NoError(t, err, "even a POST, of which nothing went out")
		require.Equal(t, []string{"text"}, api.said)
		about(t, 3*time.Second, 0.5, time.Since(api.start)) // 1 s and 2 s

		limiter := &refusing{errs: repeat(down, 9)}
		_, err = get(t, paced(0, api, limiter))
		require.ErrorAs(t, err, new(*outbound.StoreError))
		require.Equal(t, 5, ended(t, err).Attempts)
		require.EqualValues(t, 5, limiter.asked.Load())
	})
	bubble(t, "The limiters of the transports that are its Base are waited for. One that the client cannot see is not", func(t *testing.T) {
		api := play(status(200))
		inner := &transport.Transport{Base: api, Limiter: bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.1})}
		client := NewClient(over(inner))
		for range 2 {
			must(client.Post(address, "text/plain", []byte("text")))
		}
		about(t, 10*time.Second, 0.1, api.went()[1])

		_, err := NewClient(over(base(inner.RoundTrip))).Post(address, "text/plain", []byte("text"))
		require.InDelta(t, 10, throttled(t, err).RetryAfter.Seconds(), 0.001)
		require.Len(t, api.went(), 2)
	})
	bubble(t, "The result of OnRefusal is returned, but only when the wait would be too long", func(t *testing.T) {
		api, own := play(status(200)), errors.New("own")
		with := func(wait time.Duration, f func(*http.Request, error) (*http.Response, error)) *retryablehttp.Client {
			return Config{MaxWait: 30 * time.Second}.NewClient(&transport.Transport{Base: api, Limiter: &refusing{errs: []error{full(wait)}}, OnRefusal: f})
		}
		answered(t, 200, with(1500*time.Millisecond, transport.TooManyRequests))
		about(t, 1500*time.Millisecond, 0.1, time.Since(api.start)) // as the error says, not its header's 2 s

		resp := answered(t, 429, with(time.Hour, transport.TooManyRequests), "a response is what OnRefusal makes of it")
		require.Equal(t, "3600", resp.Header.Get("Retry-After"))
		answered(t, 200, with(time.Hour, func(req *http.Request, _ error) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: newBody("old"), Request: req}, nil
		}))
		_, err := get(t, with(time.Hour, func(*http.Request, error) (*http.Response, error) { return nil, own }))
		require.ErrorIs(t, err, own)
	})
}

// Each attempt is charged once, when it is sent: the cost of its context, also where the limiter would admit it too early.
// The permit of a job covers the first attempt of its request.
func TestLimiter_EachAttemptIsChargedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		steps []step
		send  func(t *testing.T, b *outbound.Bucket, rt *transport.Transport) error
		want  float64
	}{
		"in a job": {[]step{status(502), status(502), status(200)}, func(t *testing.T, b *outbound.Bucket, rt *transport.Transport) error {
			return outbound.Do(t.Context(), b, outbound.Cost{1}, func(ctx context.Context) error {
				_, err := getIn(ctx, t, NewClient(rt))
				return err
			})
		}, 3},
		"with a cost, and settled": {[]step{reset, status(200)}, func(t *testing.T, _ *outbound.Bucket, rt *transport.Transport) error {
			ctx, permit := transport.WithCost(context.Background(), outbound.Cost{10})
			_, err := getIn(ctx, t, NewClient(rt))
			permit.Settle(outbound.Cost{4})
			return err
		}, 14},
		"without a hold": {[]step{status(429, "Retry-After", "7"), status(200)}, func(t *testing.T, _ *outbound.Bucket, rt *transport.Transport) error {
			rt.OnResponse = func(_ *http.Response, p *outbound.Permit) { p.Done() }
			_, err := get(t, NewClient(rt))
			return err
		}, 2},
	} {
		bubble(t, name, func(t *testing.T) {
			b := bucket(t, outbound.Limit{Capacity: 100, LeakRate: 1e-6})
			require.NoError(t, c.send(t, b, &transport.Transport{Base: play(c.steps...), Limiter: b}))
			require.InDelta(t, c.want, levelOf(t, b), 1e-3)
		})
	}
}

// Of transports around each other the outermost limiter holds, and the client waits until that is over.
func TestLimiter_OutermostOfSeveralHolds(t *testing.T) {
	for judge, want := range map[transport.Judge][2]bool{transport.JudgeOutermost: {true, false}, transport.JudgeNever: {false, true}} {
		synctest.Test(t, func(t *testing.T) {
			outer, inner := bucket(t, outbound.PerSecond(10)), bucket(t, outbound.PerSecond(10))
			api := play(status(429, "Retry-After", "7"), status(200))
			looked := make(chan [2]bool, 1)
			time.AfterFunc(time.Second, func() {
				var held [2]bool
				for i, b := range []*outbound.Bucket{outer, inner} {
					s, err := b.State(context.Background())
					held[i] = err == nil && s.HeldFor > 0
				}
				looked <- held
			})
			answered(t, 200, NewClient(&transport.Transport{Limiter: outer, Judge: judge, Base: &transport.Transport{Limiter: inner, Base: api}}))
			require.Equal(t, want, <-looked, judge)
			require.GreaterOrEqual(t, time.Since(api.start), 7*time.Second)
		})
	}
}
