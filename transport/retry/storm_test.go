package retry

import (
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// weather answers for an API while that refuses everything, and counts every request.
type weather struct {
	api    http.RoundTripper
	storms []storm
	start  time.Time

	mu      sync.Mutex
	arrived int
	refused int
	history outboundtest.History
}

// storm is a time, from the start, in which every request gets the same answer.
type storm struct {
	from, to time.Duration
	step
	reports bool // when it is over, in a Retry-After
}

func (w *weather) RoundTrip(req *http.Request) (*http.Response, error) {
	if resp, err := w.storm(req); resp != nil || err != nil {
		return resp, err
	}
	return w.api.RoundTrip(req)
}

func (w *weather) storm(req *http.Request) (*http.Response, error) {
	now := time.Since(w.start)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.storms {
		if now < s.from || now >= s.to {
			continue
		}
		if req.Body != nil {
			_ = req.Body.Close()
		}
		w.refused++
		w.arrived++ // a dial is a call, too
		w.history.Add(time.Now(), 1)
		if s.err != nil {
			return nil, s.err
		}
		resp := s.response(req, newBody("storm"))
		if s.reports {
			resp.Header = http.Header{}
			resp.Header.Set("Retry-After", strconv.FormatFloat((s.to-now).Seconds(), 'f', -1, 64))
		}
		return resp, nil
	}
	w.arrived++
	w.history.Add(time.Now(), 1)
	return nil, nil
}

// work lets workers make so many calls, and returns how long that took. Every call must end
// with 200.
func work(t *testing.T, client *retryablehttp.Client, workers, calls int) time.Duration {
	start := time.Now()
	var made atomic.Int64
	all(t, workers, func(int) {
		for n := made.Add(1); n <= int64(calls); n = made.Add(1) {
			req, err := retryablehttp.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.com/items", []byte("text"))
			require.NoError(t, err)
			req.Header.Set("Idempotency-Key", strconv.FormatInt(n, 10))
			resp, err := client.Do(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, 200, resp.StatusCode)
		}
	})
	return time.Since(start)
}

const gap = 101 * time.Millisecond // the time between two calls of PerSecond(10)

// All calls succeed after a storm of refusals or failures, in little more than its time. Each attempt has a permit.
func TestStorm_TakesLittleMoreThanItsTime(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	s := time.Second
	twice := func(what step) []storm {
		return []storm{{10 * s, 20 * s, what, true}, {40 * s, 45 * s, what, true}}
	}
	for _, c := range []struct {
		name   string
		storms []storm
		bare   bool          // without a queue
		ideal  time.Duration // in addition to the calls' own time
	}{
		{name: "no storm"},
		{name: "no storm, bare bucket", bare: true},
		{name: "429", storms: twice(status(429)), ideal: 15 * s},
		{name: "429, bare bucket", storms: twice(status(429)), bare: true, ideal: 15 * s},
		{name: "503 with a time", storms: twice(status(503)), ideal: 15 * s},
		{name: "503 with a time, bare bucket", storms: twice(status(503)), bare: true, ideal: 15 * s},
		{name: "503", storms: []storm{{10 * s, 15 * s, status(503), false}, {40 * s, 45 * s, status(503), false}}, ideal: 10 * s},
		{name: "no connection", storms: []storm{{10 * s, 15 * s, dial, false}}, ideal: 5 * s},
		{name: "resets", storms: []storm{{10 * s, 15 * s, reset, false}}, ideal: 5 * s},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const workers, calls = 20, 1200
				api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(10, time.Second)}, Latency: 50 * time.Millisecond}
				w := &weather{api: api, storms: c.storms, start: time.Now()}
				b := bucket(t, outbound.PerSecond(10))
				var limiter outbound.Limiter = b
				if !c.bare {
					limiter = queue.New(b, queue.Config{})
				}
				admitted := 0
				// On a bare bucket workers compete at random, and one may wait for long.
				config := Config{}
				if c.bare {
					config.MaxWait = time.Hour
				}
				took := work(t, config.NewClient(&transport.Transport{Base: w, Limiter: count(&admitted, limiter)}), workers, calls)
				ideal := (calls-1)*gap + api.Latency + c.ideal
				t.Logf("%v, %.3f of the ideal, %d arrived, %d refused", took, float64(took)/float64(ideal), w.arrived, w.refused)
				require.LessOrEqual(t, float64(took), 1.1*float64(ideal))
				require.Equal(t, admitted, w.arrived, "attempts that were not admitted")
				require.NoError(t, w.history.Check(1, 1/gap.Seconds(), 0.05)) // the queue's tolerance of 5 ms
				require.Zero(t, api.Report().Refused)
				require.Equal(t, calls, api.Report().Admitted)
			})
		})
	}
}

// An API that fails now and then gets all calls, in little more time than the attempts take.
func TestStorm_FlakyAPITakesLittleMoreThanItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, bare := range []bool{false, true} {
			const workers, calls = 20, 1200
			api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(10, time.Second)}, Latency: 50 * time.Millisecond}
			trouble := []step{dial, reset, status(500), status(502), status(503)}
			n := 0
			var mu sync.Mutex
			flaky := base(func(req *http.Request) (*http.Response, error) {
				mu.Lock()
				n++
				var what step
				if n%4 == 0 && n < 1200 { // no call would use up the last pauses
					what = trouble[n/4%len(trouble)]
				}
				mu.Unlock()
				if what.err == nil && what.status == 0 {
					return api.RoundTrip(req)
				}
				_ = req.Body.Close()
				if what.err != nil {
					return nil, what.err
				}
				return what.response(req, newBody("trouble")), nil
			})
			b := bucket(t, outbound.PerSecond(10))
			var limiter outbound.Limiter = b
			if !bare {
				limiter = queue.New(b, queue.Config{})
			}
			admitted := 0
			client := Config{MaxWait: time.Hour}.NewClient(&transport.Transport{Base: flaky, Limiter: count(&admitted, limiter)})
			client.RetryMax = 20
			took := work(t, client, workers, calls)
			ideal := time.Duration(n-1) * gap
			t.Logf("%v, %.3f of the ideal, %d tried", took, float64(took)/float64(ideal), n)
			require.LessOrEqual(t, float64(took), 1.1*float64(ideal))
			require.Equal(t, n, admitted)
			require.Zero(t, api.Report().Refused)
		}
	})
}

// Workers that are cancelled in a storm leave no goroutine, no waiting call and no charge.
func TestStorm_CancelledWorkersLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble fails if a goroutine is left
		b := bucket(t, outbound.InFlight(2), outbound.PerSecond(10))
		q := queue.New(b, queue.Config{})
		w := &weather{
			api:    &outboundtest.API{Latency: 300 * time.Millisecond},
			storms: []storm{{2 * time.Second, 5 * time.Second, status(429), true}, {7 * time.Second, 9 * time.Second, reset, false}},
			start:  time.Now(),
		}
		client := NewClient(&transport.Transport{Base: w, Limiter: q}).StandardClient()
		client.Timeout = 10 * time.Second
		all(t, 50, func(i int) {
			time.Sleep(time.Duration(i) * 100 * time.Millisecond)
			client := *client
			client.Timeout -= time.Duration(i) * 150 * time.Millisecond
			resp, err := client.Post("https://api.example.com/", "text/plain", nil)
			if err == nil {
				_ = resp.Body.Close()
			}
		})
		require.Zero(t, q.Len())
		time.Sleep(time.Minute)
		states, err := b.States(t.Context())
		require.NoError(t, err)
		for _, s := range states {
			require.Zero(t, s.Level, "%v", s.Limit)
		}
	})
}
