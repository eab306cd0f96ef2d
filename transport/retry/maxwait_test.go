package retry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// MaxWait bounds the wait in a queue as well, and a queue's own adds nothing to it. Only the error at the
// context's deadline is a timeout.
func TestMaxWait_BoundsTheQueueAndTheRetriesTogether(t *testing.T) {
	for name, c := range map[string]struct {
		queue    time.Duration // its MaxWait
		deadline time.Duration
		want     time.Duration
		late     bool // the error is that of the context's deadline
	}{
		"both a minute":          {queue: time.Minute, want: time.Minute},
		"a queue without one":    {want: time.Minute},
		"a shorter one":          {queue: 20 * time.Second, want: time.Minute},
		"a longer one":           {queue: time.Hour, want: time.Minute},
		"a deadline before that": {deadline: 30 * time.Second, want: 30 * time.Second, late: true},
		"a deadline after that":  {deadline: time.Hour, want: time.Minute},
	} {
		for kind, where := range map[string]func(l outbound.Limiter) *transport.Transport{
			"Limiter": func(l outbound.Limiter) *transport.Transport { return &transport.Transport{Limiter: l} },
			"For": func(l outbound.Limiter) *transport.Transport {
				return &transport.Transport{For: func(*http.Request) outbound.Limiter { return l }}
			},
		} {
			bubble(t, name+", "+kind, func(t *testing.T) {
				b := bucket(t, outbound.PerSecond(10), outbound.InFlight(1))
				busy := must(b.Acquire(t.Context(), outbound.Cost{1})) // it never ends, which no queue can predict
				defer busy.Done()
				rt := where(queue.New(b, queue.Config{MaxWait: c.queue}))
				rt.Base = play(status(200))
				begin := time.Now()
				_, err := getIn(within(t, c.deadline), t, Config{MaxWait: time.Minute}.NewClient(rt))
				require.ErrorIs(t, err, outbound.ErrThrottled)
				require.Equal(t, c.late, errors.Is(err, context.DeadlineExceeded))
				require.LessOrEqual(t, time.Since(begin), c.want)
				require.Greater(t, time.Since(begin), c.want-2*time.Second)
			})
		}
	}
}

// What counts as a wait for the limits, and what does not.
func TestMaxWait_CountsWaitsForLimits(t *testing.T) {
	bubble(t, "The wait in the queue before a refusal counts", func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1. / 40})
		must(b.Acquire(t.Context(), outbound.Cost{1}))
		api := play(status(429, "Retry-After", "30"), status(200))
		answered(t, 429, paced(time.Minute, api, queue.New(b, queue.Config{})))
		require.Len(t, api.went(), 1)
		about(t, 40*time.Second, 0.01, time.Since(api.start)) // 40 s in the queue, and 30 s would not fit into the rest
	})
	bubble(t, "The waits of one attempt add up", func(t *testing.T) {
		limiter, start := &refusing{errs: repeat(full(4*time.Second), 5)}, time.Now()
		_, err := get(t, paced(10*time.Second, play(status(200)), limiter))
		require.Equal(t, 4*time.Second, throttled(t, err).RetryAfter)
		require.EqualValues(t, 3, limiter.asked.Load())
		about(t, 8*time.Second, 0.1, time.Since(start))
	})
	bubble(t, "Each attempt has a MaxWait of its own", func(t *testing.T) {
		again, api := full(8*time.Second), play(reset, reset, status(200))
		answered(t, 200, paced(10*time.Second, api, &refusing{errs: []error{again, nil, again, nil, again}}))
		require.Greater(t, time.Since(api.start), 24*time.Second)
	})
	bubble(t, "The client does not begin the pause after a refusal without a time if that could end too late", func(t *testing.T) {
		api := play(status(409), status(409), status(409), status(200))
		lock := &profile.Profile{Refusals: []int{409}, Reason: profile.Lock}
		answered(t, 409, Config{MaxWait: 5 * time.Second}.NewClient(&transport.Transport{Base: api, Limiter: bucket(t, wide), Profile: lock}))
		require.Equal(t, api.went()[2], time.Since(api.start))
	})
	bubble(t, "Capacity that is free when MaxWait ends is used, although the limiter then has no time left", func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1 / 0.3})
		must(b.Acquire(t.Context(), outbound.Cost{1}))
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		client := paced(throttled(t, err).RetryAfter, play(status(200)), b)
		answered(t, 200, client)
		require.NoError(t, b.Hold(t.Context(), time.Hour))
		_, err = get(t, client)
		require.Greater(t, throttled(t, err).RetryAfter, 59*time.Minute)
	})
	bubble(t, "The latency of the API does not count", func(t *testing.T) {
		for _, l := range []outbound.Limiter{outbound.Unlimited{}, bucket(t, outbound.PerSecond(10)), queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{})} {
			api := play(status(429, "Retry-After", "4"), status(429, "Retry-After", "4"), status(200))
			slow := base(func(req *http.Request) (*http.Response, error) {
				time.Sleep(20 * time.Second)
				return api.RoundTrip(req)
			})
			answered(t, 200, paced(10*time.Second, slow, l), "%T", l)
		}
	})
	bubble(t, "A limiter of the program's own may return the error of its context. If MaxWait is why that ended, it is no timeout", func(t *testing.T) {
		begin := time.Now()
		_, err := get(t, paced(10*time.Second, play(status(200)), limiterFunc(func(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
			<-ctx.Done()
			return outbound.Permit{}, ctx.Err()
		})))
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, outbound.ThrottledError{}, *throttled(t, err))
		about(t, 10*time.Second, 0.001, time.Since(begin))
	})
	bubble(t, "Without a MaxWait and a deadline a Retry-After of hours is no hang, as users of other clients report it (go-retryablehttp#247 and #295, spotipy#766): the 429 comes back", func(t *testing.T) {
		// A queue waits as it is told to.
		for after, attempts := range map[string]int{"72000": 1, "121": 1, "120": 5} {
			api := play(status(429, "Retry-After", after))
			answered(t, 429, paced(0, api, outbound.Unlimited{}))
			require.Len(t, api.went(), attempts, after)
		}
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1. / 600})
		for range 2 { // the second waits for 10 min, and then for what the API asks for
			answered(t, 200, paced(0, play(status(429, "Retry-After", "1"), status(200)), queue.New(b, queue.Config{})))
		}
		_, err := get(t, paced(0, play(status(200)), b))
		require.Greater(t, throttled(t, err).RetryAfter, 2*time.Minute)
	})
}

// A wait beyond MaxWait or the deadline is not begun, and one just within it is.
func TestMaxWait_BoundsTheLimitersWait(t *testing.T) {
	for _, c := range []struct {
		name     string
		max      time.Duration // Config.MaxWait
		deadline time.Duration // 0: none
		wait     time.Duration
		late     bool // the error names the deadline
	}{
		{name: "two minutes without a deadline", wait: 2*time.Minute + 1},
		{name: "a day", max: -1, wait: 24*time.Hour + 1},
		{name: "MaxWait", max: time.Minute, wait: time.Minute + 1},
		{name: "deadline", deadline: 10 * time.Second, wait: 10*time.Second + 1, late: true},
		{name: "a deadline beyond 30 s", deadline: time.Hour, wait: time.Hour + 1, late: true},
		{name: "MaxWait before a deadline", max: time.Second, deadline: time.Hour, wait: time.Second + 1},
		{name: "a deadline before MaxWait", max: time.Hour, deadline: time.Second, wait: time.Second + 1, late: true},
		{name: "the longest Duration", max: 1<<63 - 2, wait: 1<<63 - 1},
	} {
		bubble(t, c.name, func(t *testing.T) {
			api, limiter, ctx := play(status(200)), &refusing{errs: []error{full(c.wait)}}, within(t, c.deadline)
			client := paced(c.max, api, limiter)
			_, err := getIn(ctx, t, client)
			require.Zero(t, time.Since(api.start))
			require.Equal(t, c.wait, throttled(t, err).RetryAfter)
			require.Equal(t, c.late, errors.Is(err, context.DeadlineExceeded))
			require.Equal(t, c.late, ended(t, err).Timeout())
			require.Empty(t, api.went())

			within := c.wait - 1
			if c.late { // a wait that ends with the deadline may lose to it
				within--
			}
			limiter.errs = append(limiter.errs, full(min(within, time.Hour)))
			if c.wait < time.Hour {
				must(getIn(ctx, t, client))
				require.Equal(t, within, time.Since(api.start))
			}
		})
	}
}

// A refusal whose time is beyond MaxWait is returned immediately. One without a valid time is not.
func TestMaxWait_BoundsTheTimeOfTheAPI(t *testing.T) {
	for value, final := range map[string]bool{
		"31":                            true,
		"30.000000001":                  true,
		"9223372037":                    true, // longer than any Duration
		"Fri, 31 Dec 9999 23:59:59 GMT": true,
		"-9223372037":                   false,
		"0":                             false,
		"soon":                          false,
	} {
		for _, name := range []string{"nil", "bucket", "queue"} {
			bubble(t, fmt.Sprintf("%q over %s", value, name), func(t *testing.T) {
				api := play(status(429, "Retry-After", value), status(200))
				client := paced(30*time.Second, api, limiters(t)[name])
				if !final { // as if the API had not said it
					answered(t, 200, client)
					about(t, time.Second, 0.5, api.went()[1])
					return
				}
				answered(t, 429, client)
				require.Zero(t, time.Since(api.start))
				require.Len(t, api.went(), 1)
				require.EqualValues(t, 1, api.bodies[0].closed.Load())
			})
		}
	}
}
