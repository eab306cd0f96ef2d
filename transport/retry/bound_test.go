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

// MaxWait of the client bounds the wait in a queue as well: both do not add up. The error is no timeout of the
// request's.
func TestMaxWaitBoundsTheQueueAndTheRetriesTogether(t *testing.T) {
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
			t.Run(name+", "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := bucket(t, outbound.PerSecond(10), outbound.InFlight(1))
					busy, err := b.Acquire(t.Context(), outbound.Cost{1}) // it never ends, which no queue can foretell
					require.NoError(t, err)
					defer busy.Done()
					rt := where(queue.New(b, queue.Config{MaxWait: c.queue}))
					rt.Base = play(status(200))
					ctx := t.Context()
					if c.deadline > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, c.deadline)
						defer cancel()
					}
					req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
					require.NoError(t, err)
					begin := time.Now()
					_, err = do(Config{MaxWait: time.Minute}.NewClient(rt), req)
					require.ErrorIs(t, err, outbound.ErrThrottled)
					require.Equal(t, c.late, errors.Is(err, context.DeadlineExceeded))
					require.LessOrEqual(t, time.Since(begin), c.want)
					require.Greater(t, time.Since(begin), c.want-2*time.Second)
				})
			})
		}
	}
}

// A queue that foretells a longer wait than is left refuses immediately, also after a wait that came before.
func TestMaxWaitCountsTheWaitInTheQueueBeforeARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1. / 40})
		first, err := b.Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		first.Done()
		api := play(status(429, "Retry-After", "30"), status(200))
		begin := time.Now()
		resp, err := get(t, Config{MaxWait: time.Minute}.NewClient(&transport.Transport{Limiter: queue.New(b, queue.Config{}), Base: api}))
		require.NoError(t, err)
		require.Equal(t, 429, resp.StatusCode)
		require.Len(t, api.went(), 1)
		about(t, 40*time.Second, 0.01, time.Since(begin)) // 40 s in the queue, and 30 s would not fit into the rest
	})
}

// Room that comes when MaxWait is over is used: the pause before it leaves the limiter no time.
func TestMaxWaitUsesRoomThatComesAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1 / 0.3})
		first, err := b.Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		first.Done()
		_, err = b.Acquire(t.Context(), outbound.Cost{1})
		client := Config{MaxWait: throttled(t, err).RetryAfter}.NewClient(&transport.Transport{Limiter: b, Base: play(status(200))})
		_, err = get(t, client)
		require.NoError(t, err)
		require.NoError(t, b.Hold(t.Context(), time.Hour))
		_, err = get(t, client)
		require.Greater(t, throttled(t, err).RetryAfter, 59*time.Minute)
	})
}

// The time in which the API does not answer is no wait for room.
func TestMaxWaitDoesNotCountTheTimeOfTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, l := range map[string]outbound.Limiter{
			"unlimited": outbound.Unlimited{},
			"a bucket":  bucket(t, outbound.PerSecond(10)),
			"a queue":   queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{}),
		} {
			api := play(status(429, "Retry-After", "4"), status(429, "Retry-After", "4"), status(200))
			slow := base(func(req *http.Request) (*http.Response, error) {
				time.Sleep(20 * time.Second)
				return api.RoundTrip(req)
			})
			_, err := get(t, Config{MaxWait: 10 * time.Second}.NewClient(&transport.Transport{Limiter: l, Base: slow}))
			require.NoError(t, err, name)
		}
	})
}

// A limiter of the program's own may return the error of its context. MaxWait is over, and the request's deadline is not.
func TestMaxWaitIsNoTimeoutOfALimiterOfTheProgramsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		waits := limiterFunc(func(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
			if asked++; asked == 1 {
				return outbound.Permit{}, &outbound.ThrottledError{Key: "own", RetryAfter: 3 * time.Second}
			}
			<-ctx.Done()
			return outbound.Permit{}, ctx.Err()
		})
		for _, want := range []outbound.ThrottledError{{}, {}} {
			begin := time.Now()
			_, err := get(t, Config{MaxWait: 10 * time.Second}.NewClient(&transport.Transport{Limiter: waits, Base: play(status(200))}))
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, want, *throttled(t, err))
			about(t, 10*time.Second, 0.001, time.Since(begin))
		}
	})
}
