package retry

import (
	"context"
	"errors"
	"fmt"
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

func TestALimitersRefusalBeyondTheCapComesBackAtOnce(t *testing.T) {
	for _, c := range []struct {
		name     string
		config   Config
		deadline time.Duration // 0: none
		wait     time.Duration
		late     bool // the error names the deadline
	}{
		{name: "a day without a deadline", wait: 24*time.Hour + 1},
		{name: "MaxWait", config: Config{MaxWait: time.Minute}, wait: time.Minute + 1},
		{name: "deadline", deadline: 10 * time.Second, wait: 10*time.Second + 1, late: true},
		{name: "a deadline beyond 30 s", deadline: time.Hour, wait: time.Hour + 1, late: true},
		{name: "MaxWait before a deadline", config: Config{MaxWait: time.Second}, deadline: time.Hour, wait: time.Second + 1},
		{name: "a deadline before MaxWait", config: Config{MaxWait: time.Hour}, deadline: time.Second, wait: time.Second + 1, late: true},
		{name: "for ever", config: Config{MaxWait: 1<<63 - 2}, wait: 1<<63 - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := play(status(200))
				limiter := &refusing{errs: []error{&outbound.ThrottledError{Key: "api", RetryAfter: c.wait}}}
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
				require.NoError(t, err)
				_, err = do(c.config.NewClient(&transport.Transport{Base: api, Limiter: limiter}), req)
				require.Zero(t, time.Since(api.start))
				require.Equal(t, c.wait, throttled(t, err).RetryAfter)
				require.Equal(t, c.late, errors.Is(err, context.DeadlineExceeded))
				require.Equal(t, c.late, ended(t, err).Timeout())
				require.Empty(t, api.went())

				// The client waits for a time just within the bound, and never longer than
				// that.
				within := c.wait - 1
				if c.late { // a wait that ends with the deadline may lose to it
					within--
				}
				limiter.errs = append(limiter.errs, &outbound.ThrottledError{Key: "api", RetryAfter: min(within, time.Hour)})
				if c.wait < time.Hour {
					_, err = do(c.config.NewClient(&transport.Transport{Base: api, Limiter: limiter}), req)
					require.NoError(t, err)
					require.Equal(t, within, time.Since(api.start))
				}
			})
		})
	}
}

func TestMaxWaitCountsThePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := &outbound.ThrottledError{Key: "api", RetryAfter: 4 * time.Second}
		limiter := &refusing{errs: []error{again, again, again, again, again}}
		start := time.Now()
		_, err := get(t, Config{MaxWait: 10 * time.Second}.NewClient(&transport.Transport{Base: play(status(200)), Limiter: limiter}))
		require.Equal(t, 4*time.Second, throttled(t, err).RetryAfter)
		require.EqualValues(t, 3, limiter.asked.Load())
		about(t, 8*time.Second, 0.1, time.Since(start))
	})
}

func TestMaxWaitBeginsAnewWhenAnAttemptHadRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := &outbound.ThrottledError{Key: "api", RetryAfter: 8 * time.Second}
		admitted := outbound.Unlimited{}
		n := 0
		limiter := limiterFunc(func(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
			if n++; n%2 == 1 {
				return outbound.Permit{}, again
			}
			return admitted.Acquire(ctx, c)
		})
		api := play(reset, reset, status(200))
		_, err := get(t, Config{MaxWait: 10 * time.Second}.NewClient(&transport.Transport{Base: api, Limiter: limiter}))
		require.NoError(t, err)
		require.Greater(t, time.Since(api.start), 24*time.Second)
	})
}

func TestAWaitWithoutAKnownEndIsShortAndGrows(t *testing.T) {
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

func repeat(err error, n int) (errs []error) {
	for range n {
		errs = append(errs, err)
	}
	return errs
}

func TestPausesWithoutAKnownEndBeginAnewWhenAnAttemptHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &outbound.ThrottledError{Key: "api"}
		n := 0
		limiter := limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) {
			if n++; n%6 != 0 {
				return outbound.Permit{}, full
			}
			return outbound.Permit{}, nil
		})
		api := play(reset, status(200))
		client := NewClient(&transport.Transport{Base: api, Limiter: limiter})
		client.RetryWaitMin, client.RetryWaitMax = 0, 0
		_, err := get(t, client)
		require.NoError(t, err)
		for i, at := range api.went() { // after 10 + 20 + 40 + 80 + 160 ms
			about(t, time.Duration(i+1)*310*time.Millisecond, 0.5, at)
		}
	})
}

func TestABusySlotIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.InFlight(1))
		permit, err := b.Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		time.AfterFunc(time.Second, permit.Done)
		api := play(status(200))
		_, err = get(t, NewClient(&transport.Transport{Base: api, Limiter: b}))
		require.NoError(t, err)
		about(t, time.Second, 1, api.went()[0])
		state, err := b.State(t.Context())
		require.NoError(t, err)
		require.Zero(t, state.Level, "a slot is still taken")
	})
}

func TestManyWorkersOnABareBucketAllGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 64
		api := play(status(200))
		client := NewClient(&transport.Transport{Base: api, Limiter: bucket(t, outbound.PerSecond(10))})
		all(t, workers, func(int) {
			_, err := get(t, client)
			require.NoError(t, err)
		})
		ideal := (workers - 1) * 101 * time.Millisecond
		about(t, ideal, 0.1, time.Since(api.start))
		require.Len(t, api.went(), workers)
	})
}

func TestRequestsThatCanNeverGoAreNotTriedAgain(t *testing.T) {
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

func TestANilTransportRefusesAll(t *testing.T) {
	_, err := get(t, NewClient(nil))
	require.ErrorIs(t, err, outbound.ErrInvalid)
}

func TestAFailingStoreCountsAsAFailure(t *testing.T) {
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

func TestAPauseIsNotInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{})
		api := play(status(429, "Retry-After", "5"), status(200))
		client := NewClient(&transport.Transport{Base: api, Limiter: q})
		_, err := get(t, client)
		require.NoError(t, err)
		about(t, 5*time.Second, 0.1, api.went()[1])
		require.Zero(t, q.Stats().Waited, "the pause is not in line")
	})
}

func TestAQueuesRefusalIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.2})
		q := queue.New(b, queue.Config{MaxWait: time.Second})
		api := play(status(200))
		client := NewClient(&transport.Transport{Base: api, Limiter: q})
		for range 2 {
			_, err := get(t, client)
			require.NoError(t, err)
		}
		about(t, 5*time.Second, 0.1, api.went()[1])

		require.NoError(t, q.Shutdown(t.Context()))
		_, err := get(t, client)
		require.ErrorIs(t, err, queue.ErrClosed)
	})
}

func TestATransportBelowIsALimiterAsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(200))
		inner := &transport.Transport{Base: api, Limiter: bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.1})}
		client := NewClient(over(inner))
		for range 2 {
			_, err := client.Post(address, "text/plain", []byte("text"))
			require.NoError(t, err)
		}
		about(t, 10*time.Second, 0.1, api.went()[1])

		// One that the client cannot see is not waited for.
		_, err := NewClient(over(base(inner.RoundTrip))).Post(address, "text/plain", []byte("text"))
		require.InDelta(t, 10, throttled(t, err).RetryAfter.Seconds(), 0.001)
		require.Len(t, api.went(), 2)
	})
}

func TestOnRefusalHasTheLastWord(t *testing.T) {
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
			return nil, fmt.Errorf("%w: %d", own, 1)
		})
		require.ErrorIs(t, err, own)
	})
}

// The permit of a job pays for the first attempt of its request, and each further attempt pays for itself.
func TestRetriesInAJobOfTheSameBucketPay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := outbound.Must(outbound.NewBucket("b", outbound.Limit{Capacity: 10, LeakRate: 1e-6}))
		client := NewClient(&transport.Transport{Base: play(status(502), status(502), status(200)), Limiter: bucket})
		require.NoError(t, outbound.Do(t.Context(), bucket, outbound.Cost{1}, func(ctx context.Context) error {
			req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
			require.NoError(t, err)
			resp, err := client.Do(req)
			require.NoError(t, err)
			return resp.Body.Close()
		}))
		state, err := bucket.State(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 3, state.Level, 1e-3)
	})
}

// A client around transports in a row has the outermost limiter hold, and tries again itself when that is over.
func TestARowOfTransportsIsJudgedOnce(t *testing.T) {
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
