package retry

import (
	"context"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// The client waits as long as the API asks, and backs off where it does not, whatever the limiter is.
func TestRefusal_PausesWithAnyLimiter(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		refusal step
		pauses  []time.Duration
		jitter  float64
	}{
		{status(429, "Retry-After", "7"), []time.Duration{7 * s}, 0.1},
		{status(503, "Retry-After", "7"), []time.Duration{7 * s}, 0.1},
		{status(429), []time.Duration{1 * s, 2 * s, 4 * s}, 0.5},
		{calm, []time.Duration{1 * s, 2 * s, 4 * s}, 0.5},
	} {
		for name := range limiters(t) {
			synctest.Test(t, func(t *testing.T) {
				api := play(append(slices.Repeat([]step{c.refusal}, len(c.pauses)), status(200))...)
				answered(t, 200, NewClient(&transport.Transport{Base: api, Limiter: limiters(t)[name]}), name)
				went := api.went()
				require.Len(t, went, len(c.pauses)+1, name)
				for i, want := range c.pauses {
					about(t, want, c.jitter, went[i+1]-went[i])
				}
			})
		}
	}
}

// The pause grows with a busy limiter too, and the attempt asks for its permit only after it.
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
			"a lock, 1000/s":            {Profile: lock, Limiter: queued(1000)},
			"a lock, 5/s":               {Profile: lock, Limiter: queued(5)},
			"a lock, 2/s":               {Profile: lock, Limiter: queued(2)},
			"a lock, 0.3/s":             {Profile: lock, Limiter: queued(0.3)},
			"no signal for the limiter": {Limiter: queued(5), OnSignal: func(_ *http.Response, s *profile.Signal) { *s = profile.Signal{} }},
			"it does not hold, 5/s":     {Limiter: waiting(5)},
			"it does not hold, 2/s":     {Limiter: waiting(2)},
			"it holds for MaxHold":      {Limiter: queued(5), MaxHold: time.Hour},
			"a MaxHold less than that":  {Limiter: waiting(100), MaxHold: 50 * time.Millisecond},
		} {
			refused := status(429)
			if rt.Profile == lock {
				refused = status(409)
			}
			api := play(append(slices.Repeat([]step{refused}, 7), status(200))...)
			rt.Base = api
			asked, limiter := 0, rt.Limiter
			rt.Limiter = limiterFunc(func(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
				asked++
				return limiter.Acquire(ctx, c)
			})
			client := Config{MaxWait: time.Hour}.NewClient(rt)
			client.RetryMax = 10
			answered(t, 200, client, name)
			went := api.went()
			require.Equal(t, len(went), asked, "%s: it has a permit before its time", name)
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

// What the limiter does about a refusal is not how long its request waits.
func TestRefusal_AnotherReasonOrMaxHold(t *testing.T) {
	bubble(t, "A refusal that OnResponse takes for another reason delays only its own request", func(t *testing.T) {
		b := bucket(t, outbound.PerSecond(1000))
		api := play(status(429, "Retry-After", "7"), status(200))
		client := NewClient(&transport.Transport{Base: api, Limiter: b, OnResponse: func(resp *http.Response, p *outbound.Permit) {
			if resp.StatusCode == 429 {
				p.Done()
			}
		}})
		all(t, 2, func(i int) {
			time.Sleep(time.Duration(i) * time.Second)
			answered(t, 200, client)
		})
		require.Equal(t, time.Second, api.went()[1])
		about(t, 7*time.Second, 0.1, api.went()[2])
		time.Sleep(time.Second)
		state := must(b.State(t.Context()))
		require.Equal(t, []float64{1, 0}, []float64{state.Speed, state.Level})
	})
	bubble(t, "MaxHold shortens the limiter's hold, but not the wait of the request that the API has refused", func(t *testing.T) {
		api := play(status(429, "Retry-After", "20"), status(200))
		answered(t, 200, NewClient(&transport.Transport{Base: api, Limiter: bucket(t, wide), MaxHold: time.Second}))
		about(t, 20*time.Second, 0.1, api.went()[1])
	})
}

// If 3 s are left of the 10 s that the API asks for, the response is returned immediately. The limiter
// that holds refuses the next request. The deadline may be the context's or the http.Client's.
func TestRefusal_BeyondTheDeadlineIsReturnedImmediately(t *testing.T) {
	for name := range limiters(t) {
		for _, timeout := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				limiter := limiters(t)[name]
				api := play(status(429, "Retry-After", "10"), status(200))
				client := NewClient(&transport.Transport{Base: api, Limiter: limiter}).StandardClient()
				req := requestWith(t, http.MethodGet, "none")
				if timeout {
					client.Timeout = 3 * time.Second
				} else {
					req = req.WithContext(within(t, 3*time.Second))
				}
				resp, err := client.Do(req)
				require.NoError(t, err, name)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, 429, resp.StatusCode)
				require.Equal(t, "10", resp.Header.Get("Retry-After"))
				require.Equal(t, "false", resp.Header.Get("X-Should-Retry"))
				if b, ok := outbound.As[*outbound.Bucket](limiter); ok {
					s, err := b.State(t.Context())
					require.NoError(t, err)
					require.NotZero(t, s.HeldFor, name)
					_, err = client.Do(req)
					require.Equal(t, 10*time.Second, throttled(t, err).RetryAfter, name)
					require.ErrorIs(t, err, context.DeadlineExceeded, name)
					require.True(t, ended(t, err).Timeout())
				}
				require.Zero(t, time.Since(api.start), name)
			})
		}
	}
}

// The end of the context ends a pause. Each response is closed, and the queue is empty.
func TestRefusal_CancelEndsThePause(t *testing.T) {
	for name := range limiters(t) {
		for _, what := range []step{status(429, "Retry-After", "7"), status(429), status(500), reset} {
			synctest.Test(t, func(t *testing.T) {
				api, limiter := play(what), limiters(t)[name]
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.AfterFunc(500*time.Millisecond, cancel)
				_, err := getIn(ctx, t, NewClient(&transport.Transport{Base: api, Limiter: limiter}))
				require.ErrorIs(t, err, context.Canceled, name)
				require.Equal(t, 500*time.Millisecond, time.Since(api.start), name)
				api.closed(t)
				if q, ok := limiter.(*queue.Queue); ok {
					require.Zero(t, q.Len())
				}
			})
		}
	}
}

// The limiter holds as soon as the headers of a refusal are there. The request waits as long as its body
// asks if that comes in time.
func TestRefusal_LateBodyHoldsTheLimiter(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration // for how long the body stalls
		wait  time.Duration // until the second attempt
	}{"in time": {time.Second, 61 * time.Second}, "too late": {5 * time.Second, 2 * time.Second}} {
		for _, judged := range []bool{false, true} {
			if judged && c.wait > 10*time.Second {
				continue // its OnResponse judges the response
			}
			synctest.Test(t, func(t *testing.T) {
				b := bucket(t, outbound.Limit{Capacity: 10, LeakRate: 10})
				var at []time.Time
				start := time.Now()
				rt := &transport.Transport{Limiter: b, Profile: profile.Dropbox, Base: base(func(req *http.Request) (*http.Response, error) {
					if at = append(at, time.Now()); len(at) > 1 {
						return status(200).response(req, http.NoBody), nil
					}
					r, w := io.Pipe()
					context.AfterFunc(req.Context(), func() { w.CloseWithError(req.Context().Err()) })
					time.AfterFunc(c.after, func() {
						_, _ = io.WriteString(w, `{"error":{"retry_after":60}}`)
						w.Close()
					})
					resp := status(429, "Content-Type", "application/json").response(req, r)
					resp.ContentLength = -1
					return resp, nil
				})}
				if judged {
					rt.OnResponse = func(resp *http.Response, p *outbound.Permit) {
						if resp.StatusCode == 429 {
							p.Refused(time.Second)
						}
					}
				}
				go func() {
					time.Sleep(20 * time.Millisecond)
					s, err := b.State(t.Context())
					if err != nil || s.HeldFor == 0 {
						t.Errorf("%s: held for %v, %v", name, s.HeldFor, err)
					}
				}()
				answered(t, 200, Config{MaxWait: time.Hour}.NewClient(rt))
				require.Len(t, at, 2)
				require.GreaterOrEqual(t, at[1].Sub(start), c.wait, name)
				require.Less(t, at[1].Sub(start), c.wait+3*time.Second, name)
			})
		}
	}
}
