package retry

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/xrate"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// wide is a limit that never refuses.
var wide = outbound.Limit{Capacity: 1e6, LeakRate: 1e6}

// limiters are all kinds of limiters that admit at once, whether or not they hold when the
// API has refused a call.
func limiters(t *testing.T) map[string]outbound.Limiter {
	never := func(context.Context, outbound.Event) {}
	keyed := &outbound.Keyed[string]{New: func(string) (outbound.Limiter, error) { return bucket(t, wide), nil }}
	return map[string]outbound.Limiter{
		"nil":                nil,
		"Unlimited":          outbound.Unlimited{},
		"observed Unlimited": outbound.Observe(outbound.Unlimited{}, "", never),
		"x/time":             &xrate.Limiter{Rate: rate.NewLimiter(1e6, 1e6)},
		"bucket":             bucket(t, wide),
		"two limits":         bucket(t, wide, outbound.Limit{Capacity: 1e6, LeakRate: 1e6, Name: "other"}),
		"queue":              queue.New(bucket(t, wide), queue.Config{}),
		"observed queue":     outbound.Observe(queue.New(bucket(t, wide), queue.Config{}), "", never),
		"keyed":              keyed.For("key"),
	}
}

func TestNoAttemptGoesBeforeTheAPIsTimeWhateverTheLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, refusal := range []step{status(429, "Retry-After", "7"), status(503, "Retry-After", "7")} {
			for name, limiter := range limiters(t) {
				api := play(refusal, status(200))
				resp, err := get(t, NewClient(&transport.Transport{Base: api, Limiter: limiter}))
				require.NoError(t, err, name)
				require.Equal(t, 200, resp.StatusCode, name)
				require.Len(t, api.went(), 2, name)
				about(t, 7*time.Second, 0.1, api.went()[1])
			}
		}
	})
}

func TestRefusal_WithoutRetryAfterBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, limiter := range limiters(t) {
			api := play(status(429), status(429), status(429), status(200))
			_, err := get(t, NewClient(&transport.Transport{Base: api, Limiter: limiter}))
			require.NoError(t, err, name)
			went := api.went()
			require.Len(t, went, 4, name)
			for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
				require.GreaterOrEqual(t, went[i+1]-went[i], want, "%s, refusal %d", name, i)
				require.LessOrEqual(t, went[i+1]-went[i], want+want/2+1, "%s, refusal %d", name, i)
			}
		}
	})
}

// Time in a queue is no hold: a request that has to wait there anyway gets its pause all the
// same.
func TestRefusal_BackoffGrowsWithABusyLimiter(t *testing.T) {
	lock := &profile.Profile{Refusals: []int{409}, Reason: profile.Lock}
	waiting := func(perSecond rate.Limit) outbound.Limiter {
		l := rate.NewLimiter(perSecond, 1)
		return limiterFunc(func(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
			return outbound.Permit{}, l.Wait(ctx)
		})
	}
	queued := func(perSecond float64) outbound.Limiter {
		return queue.New(bucket(t, outbound.PerSecond(perSecond)), queue.Config{})
	}
	synctest.Test(t, func(t *testing.T) {
		for name, rt := range map[string]*transport.Transport{
			"a lock, 1000/s":           {Profile: lock, Limiter: queued(1000)},
			"a lock, 5/s":              {Profile: lock, Limiter: queued(5)},
			"a lock, 2/s":              {Profile: lock, Limiter: queued(2)},
			"a lock, 0.3/s":            {Profile: lock, Limiter: queued(0.3)},
			"the limiter is not told":  {Limiter: queued(5), OnSignal: func(_ *http.Response, s *profile.Signal) { *s = profile.Signal{} }},
			"it does not listen, 5/s":  {Limiter: waiting(5)},
			"it does not listen, 2/s":  {Limiter: waiting(2)},
			"it holds for MaxHold":     {Limiter: queued(5), MaxHold: time.Hour},
			"a MaxHold less than that": {Limiter: waiting(100), MaxHold: 50 * time.Millisecond},
		} {
			code := 429
			if rt.Profile == lock {
				code = 409
			}
			api := play(status(code), status(code), status(code), status(code), status(code), status(code), status(code), status(200))
			rt.Base = api
			asked, limiter := 0, rt.Limiter
			rt.Limiter = limiterFunc(func(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
				asked++
				return limiter.Acquire(ctx, c)
			})
			client := Config{MaxWait: time.Hour}.NewClient(rt)
			client.RetryMax = 10
			resp, err := get(t, client)
			require.NoError(t, err, name)
			require.Equal(t, 200, resp.StatusCode, name)
			went := api.went()
			require.Equal(t, len(went), asked, "%s: it has taken a place before its time", name)
			for i, seconds := range []int{1, 2, 4, 8, 16, 30, 30} {
				want := time.Duration(seconds) * time.Second
				if name == "it holds for MaxHold" { // and the limiter is asked, not the request
					want = time.Second << i
				}
				require.GreaterOrEqual(t, went[i+1]-went[i], want, "%s, refusal %d", name, i)
				require.LessOrEqual(t, went[i+1]-went[i], want*3/2+4*time.Second, "%s, refusal %d", name, i)
			}
		}
	})
}

// The client does not begin such a pause either if it could end too late.
func TestThePauseOfARefusalWithoutATimeIsBoundedByMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(409), status(409), status(409), status(200))
		lock := &profile.Profile{Refusals: []int{409}, Reason: profile.Lock}
		resp, err := get(t, Config{MaxWait: 5 * time.Second}.NewClient(&transport.Transport{Base: api, Limiter: bucket(t, wide), Profile: lock}))
		require.NoError(t, err)
		require.Equal(t, 409, resp.StatusCode)
		require.Equal(t, api.went()[2], time.Since(api.start))
	})
}

// A refusal for other reasons stops nobody but its own request.
func TestARefusalForOtherReasonsDelaysOnlyItsOwnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.PerSecond(1000))
		api := play(status(429, "Retry-After", "7"), status(200))
		client := NewClient(&transport.Transport{Base: api, Limiter: b, OnResponse: func(resp *http.Response, p *outbound.Permit) {
			if resp.StatusCode == 429 {
				p.Done()
			}
		}})
		all(t, 2, func(i int) {
			time.Sleep(time.Duration(i) * time.Second)
			_, err := get(t, client)
			require.NoError(t, err)
		})
		require.Equal(t, time.Second, api.went()[1])
		about(t, 7*time.Second, 0.1, api.went()[2])
		time.Sleep(time.Second)
		state, err := b.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1.0, state.Speed)
		require.Zero(t, state.Level)
	})
}

// No attempt is charged that does not go out, also where the limiter would admit it too early.
func TestEachAttemptIsChargedOnce(t *testing.T) {
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

func TestARefusalBeyondMaxWaitComesBackAtOnce(t *testing.T) {
	const most = 1 << 31 * time.Second // the longest time that a profile returns
	for value, want := range map[string]time.Duration{
		"31":                            31 * time.Second,
		"30.000000001":                  30*time.Second + 1,
		"3600":                          time.Hour,
		"1e10":                          0,
		"10000000000":                   most,
		"9223372037":                    most,
		"99999999999999999999999999999": 0,
		"Fri, 31 Dec 9999 23:59:59 GMT": most,
		"2345-01-01T00:00:00Z":          most,
		"-1":                            0,
		"-9223372037":                   0,
		"0":                             0,
		"NaN":                           0,
		"Inf":                           0,
		"+60":                           0,
		"0x40":                          0,
		"1_000":                         0,
		"Thu, 01 Jan 1970 00:00:00 GMT": 0,
		"soon":                          0,
		"":                              0,
	} {
		for _, name := range []string{"nil", "bucket", "queue"} {
			t.Run(fmt.Sprintf("%q over %s", value, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					limiter := limiters(t)[name]
					api := play(status(429, "Retry-After", value), status(200))
					client := Config{MaxWait: 30 * time.Second}.NewClient(&transport.Transport{Base: api, Limiter: limiter})
					resp, err := get(t, client)
					require.NoError(t, err)
					if want == 0 { // as if the API had not said it
						require.Equal(t, 200, resp.StatusCode)
						about(t, time.Second, 0.5, api.went()[1])
						return
					}
					require.Zero(t, time.Since(api.start))
					require.Equal(t, 429, resp.StatusCode)
					require.Len(t, api.went(), 1)
					require.EqualValues(t, 1, api.bodies[0].closed.Load())
				})
			})
		}
	}
}

// MaxHold shortens the limiter's hold, but not the wait of the request that the API has
// refused.
func TestAShorterHoldDoesNotShortenTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(429, "Retry-After", "20"), status(200))
		_, err := get(t, NewClient(&transport.Transport{Base: api, Limiter: bucket(t, wide), MaxHold: time.Second}))
		require.NoError(t, err)
		about(t, 20*time.Second, 0.1, api.went()[1])
	})
}

func TestALongerHoldThanTheAPIAskedForCountsAsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, wide)
		require.NoError(t, b.Hold(t.Context(), time.Minute))
		api := play(status(200))
		_, err := get(t, Config{MaxWait: 30 * time.Second}.NewClient(&transport.Transport{Base: api, Limiter: b}))
		full := throttled(t, err)
		require.Equal(t, time.Minute, full.RetryAfter)
		require.True(t, full.Held)
		require.Equal(t, "api", full.Key)
		_, err = get(t, Config{MaxWait: time.Hour}.NewClient(&transport.Transport{Base: api, Limiter: b}))
		require.NoError(t, err)
		about(t, time.Minute, 0.1, api.went()[0])
	})
}

func TestARefusalOutOfACacheIsFinal(t *testing.T) {
	for _, header := range [][]string{{"Age", "3"}, {"X-From-Cache", "1"}} {
		api := play(status(429, append(header, "Retry-After", "1")...), status(200))
		resp, err := get(t, NewClient(over(api)))
		require.NoError(t, err)
		require.Equal(t, 429, resp.StatusCode)
		require.Len(t, api.went(), 1)
	}
}

// Of 10 s that the API asks for 3 s are left: nobody waits for them. The limiter that holds says
// so to the next request.
func TestADeadlineDuringAHoldEndsTheRequestAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, limiter := range limiters(t) {
			api := play(status(429, "Retry-After", "10"), status(200))
			client := NewClient(&transport.Transport{Base: api, Limiter: limiter})
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
			require.NoError(t, err)
			resp, err := do(client, req)
			require.NoError(t, err, name)
			require.Equal(t, 429, resp.StatusCode)
			require.Equal(t, "10", resp.Header.Get("Retry-After"))
			require.Equal(t, "false", resp.Header.Get("X-Should-Retry"))
			if b, ok := outbound.As[*outbound.Bucket](limiter); ok {
				s, err := b.State(t.Context())
				require.NoError(t, err)
				require.NotZero(t, s.HeldFor, name)
				_, err = do(client, req)
				require.Equal(t, 10*time.Second, throttled(t, err).RetryAfter, name)
				require.ErrorIs(t, err, context.DeadlineExceeded, name)
				require.True(t, ended(t, err).Timeout())
			}
			require.Zero(t, time.Since(api.start), name)
			time.Sleep(time.Minute)
		}
	})
}

func TestTheEndOfTheContextDuringAnAttemptEndsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		require.NoError(t, err)
		_, err = do(NewClient(over(base(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, reset.err // the connection was cut
		}))), req)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestTheEndOfTheContextEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, limiter := range limiters(t) {
			for _, what := range []step{status(429, "Retry-After", "7"), status(429), status(500), reset} {
				api := play(what)
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(500*time.Millisecond, cancel)
				req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
				require.NoError(t, err)
				_, err = do(NewClient(&transport.Transport{Base: api, Limiter: limiter}), req)
				require.ErrorIs(t, err, context.Canceled, name)
				require.Equal(t, 500*time.Millisecond, time.Since(api.start), name)
				for _, body := range api.bodies {
					require.EqualValues(t, 1, body.closed.Load())
				}
				cancel()
				if q, ok := limiter.(*queue.Queue); ok {
					require.Zero(t, q.Len())
				}
				time.Sleep(time.Minute) // until the bucket's hold is over
			}
		}
	})
}
