package retry

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// If RetryAfter is zero, the client asks after 10 ms, doubled up to 1 s.
func TestLimiter_WithoutRetryAfterIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Duration
		start := time.Now()
		limiter := outbound.Observe(&refusing{errs: repeat(&outbound.ThrottledError{Key: "api"}, 100)}, "",
			func(_ context.Context, e outbound.Event) {
				if e.Kind == outbound.EventRefused {
					asked = append(asked, time.Since(start))
				}
			})
		_, err := get(t, Config{MaxWait: 30 * time.Second}.NewClient(&transport.Transport{Base: play(status(200)), Limiter: limiter}))
		require.ErrorIs(t, err, outbound.ErrThrottled)
		want := 10 * time.Millisecond
		for i := range asked[1:] {
			about(t, want, 0.5, asked[i+1]-asked[i])
			want = min(2*want, time.Second)
		}
		require.Less(t, time.Since(start), 30*time.Second+1)
		require.Greater(t, time.Since(start), 28*time.Second)
	})
}

// An error of the limiter's that no wait can mend ends the request.
func TestLimiter_OtherErrorsAreFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("own")
		for _, reason := range []error{
			&outbound.CostError{Key: "api", Err: outbound.ErrTooLarge},
			&outbound.CostError{Key: "api", Err: outbound.ErrInvalid},
			&outbound.LimitError{Key: "api"},
			outbound.ErrInvalid,
			queue.ErrClosed,
			context.Canceled,
			context.DeadlineExceeded,
			own,
		} {
			api := play(status(200))
			limiter := &refusing{errs: []error{reason}}
			_, err := get(t, NewClient(&transport.Transport{Base: api, Limiter: limiter}))
			require.ErrorIs(t, err, reason)
			require.EqualValues(t, 1, limiter.asked.Load(), "%v", reason)
			require.Zero(t, time.Since(api.start))
		}
	})
}

// A store's error is a failure, after which any method may be sent.
func TestLimiter_AStoreErrorIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := &outbound.StoreError{Op: "book", Key: "api", Err: errors.New("down")}
		api := play(status(200))
		limiter := &refusing{errs: []error{down, down}}
		req, err := retryablehttp.NewRequest(http.MethodPost, address, []byte("text"))
		require.NoError(t, err)
		_, err = do(NewClient(&transport.Transport{Base: api, Limiter: limiter}), req)
		require.NoError(t, err, "even a POST, of which nothing went out")
		require.Equal(t, []string{"text"}, api.said)
		about(t, 3*time.Second, 0.5, time.Since(api.start)) // 1 s and 2 s

		limiter = &refusing{errs: repeat(down, 9)}
		_, err = get(t, NewClient(&transport.Transport{Base: api, Limiter: limiter}))
		var store *outbound.StoreError
		require.ErrorAs(t, err, &store)
		require.Equal(t, 5, ended(t, err).Attempts)
		require.EqualValues(t, 5, limiter.asked.Load())
	})
}

// The limiters of the transports that are its Base are waited for. One that the client cannot see is not.
func TestLimiter_OfATransportBelow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(200))
		inner := &transport.Transport{Base: api, Limiter: bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.1})}
		client := NewClient(over(inner))
		for range 2 {
			_, err := client.Post(address, "text/plain", []byte("text"))
			require.NoError(t, err)
		}
		about(t, 10*time.Second, 0.1, api.went()[1])

		_, err := NewClient(over(base(inner.RoundTrip))).Post(address, "text/plain", []byte("text"))
		require.InDelta(t, 10, throttled(t, err).RetryAfter.Seconds(), 0.001)
		require.Len(t, api.went(), 2)
	})
}

// The result of OnRefusal is returned, but only when the wait would be too long.
func TestLimiter_OnRefusalIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(200))
		full := &outbound.ThrottledError{Key: "api", RetryAfter: 1500 * time.Millisecond}
		with := func(limiter outbound.Limiter, f func(*http.Request, error) (*http.Response, error)) (*http.Response, error) {
			return get(t, Config{MaxWait: 30 * time.Second}.NewClient(&transport.Transport{Base: api, Limiter: limiter, OnRefusal: f}))
		}
		_, err := with(&refusing{errs: []error{full}}, transport.TooManyRequests)
		require.NoError(t, err)
		about(t, 1500*time.Millisecond, 0.1, time.Since(api.start)) // as the error says, not its header's 2 s

		hour := &outbound.ThrottledError{Key: "api", RetryAfter: time.Hour}
		resp, err := with(&refusing{errs: []error{hour}}, transport.TooManyRequests)
		require.NoError(t, err, "a response is what OnRefusal makes of it")
		require.Equal(t, 429, resp.StatusCode)
		require.Equal(t, "3600", resp.Header.Get("Retry-After"))

		resp, err = with(&refusing{errs: []error{hour}}, func(req *http.Request, _ error) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: newBody("old"), Request: req}, nil
		})
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)

		own := errors.New("own")
		_, err = with(&refusing{errs: []error{hour}}, func(*http.Request, error) (*http.Response, error) {
			return nil, own
		})
		require.ErrorIs(t, err, own)
	})
}

// The permit of a job covers the first attempt of its request, and each further one is charged.
func TestLimiter_RetriesInAJobAreCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := outbound.Must(outbound.NewBucket("b", outbound.Limit{Capacity: 10, LeakRate: 1e-6}))
		client := NewClient(&transport.Transport{Base: play(status(502), status(502), status(200)), Limiter: bucket})
		require.NoError(t, outbound.Do(t.Context(), bucket, outbound.Cost{1}, func(ctx context.Context) error {
			_, err := getIn(ctx, t, client)
			return err
		}))
		state, err := bucket.State(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 3, state.Level, 1e-3)
	})
}

// Of transports around each other the outermost limiter holds, and the client waits until that is over.
func TestLimiter_OutermostOfSeveralHolds(t *testing.T) {
	for judge, want := range map[transport.Judge][2]bool{transport.JudgeOutermost: {true, false}, transport.JudgeNever: {false, true}} {
		synctest.Test(t, func(t *testing.T) {
			outer, inner := bucket(t, outbound.PerSecond(10)), bucket(t, outbound.PerSecond(10))
			api := play(status(429, "Retry-After", "7"), status(200))
			var held [2]bool
			client := NewClient(&transport.Transport{Limiter: outer, Judge: judge, Base: &transport.Transport{Limiter: inner, Base: api}})
			begin := time.Now()
			var looked sync.WaitGroup
			looked.Go(func() {
				time.Sleep(time.Second)
				for i, b := range []*outbound.Bucket{outer, inner} {
					s, err := b.State(t.Context())
					require.NoError(t, err)
					held[i] = s.HeldFor > 0
				}
			})
			resp, err := get(t, client)
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			looked.Wait()
			require.Equal(t, want, held, judge)
			require.GreaterOrEqual(t, time.Since(begin), 7*time.Second)
		})
	}
}

// Each attempt is charged the context's cost.
func TestLimiter_EachAttemptIsChargedTheCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 100, LeakRate: 1e-6})
		ctx, permit := transport.WithCost(context.Background(), outbound.Cost{10})
		_, err := getIn(ctx, t, NewClient(&transport.Transport{Base: play(reset, status(200)), Limiter: b}))
		require.NoError(t, err)
		permit.Settle(outbound.Cost{4})
		state, err := b.State(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 14, state.Level, 1e-3)
	})
}

// An attempt is charged when it is sent, also where the limiter would admit it too early.
func TestLimiter_EachAttemptIsChargedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 3, LeakRate: 1e-9})
		api := play(status(429, "Retry-After", "7"), status(200))
		client := NewClient(&transport.Transport{Base: api, Limiter: b, OnResponse: func(_ *http.Response, p *outbound.Permit) { p.Done() }})
		_, err := get(t, client)
		require.NoError(t, err)
		state, err := b.State(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 2, state.Level, 1e-6)
	})
}
