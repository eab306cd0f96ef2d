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

// weather answers for an API that refuses everything for a time, or fails now and then, and counts every request.
type weather struct {
	api    http.RoundTripper
	storms []storm
	flaky  []step // in turn for every fourth request, up to the 1,200th: no call would use up the last pauses
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
	s := w.now()
	if s.err == nil && s.status == 0 {
		return w.api.RoundTrip(req)
	}
	if req.Body != nil {
		_ = req.Body.Close()
	}
	if s.err != nil {
		return nil, s.err
	}
	return s.response(req, newBody("storm")), nil
}

// now counts a request, and returns how it is answered if not by the API. A dial is a call, too.
func (w *weather) now() (s step) {
	now := time.Since(w.start)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrived++
	w.history.Add(time.Now(), 1)
	if n := w.arrived; len(w.flaky) > 0 && n%4 == 0 && n < 1200 {
		return w.flaky[n/4%len(w.flaky)]
	}
	for _, s := range w.storms {
		if s.from <= now && now < s.to {
			w.refused++
			if s.reports {
				return status(s.status, "Retry-After", strconv.FormatFloat((s.to-now).Seconds(), 'f', -1, 64))
			}
			return s.step
		}
	}
	return step{}
}

// work lets workers make so many calls, and returns how long that took. Every call must end
// with 200.
func work(t *testing.T, client *retryablehttp.Client, workers, calls int) time.Duration {
	start := time.Now()
	var made atomic.Int64
	all(t, workers, func(int) {
		for n := made.Add(1); n <= int64(calls); n = made.Add(1) {
			req := must(retryablehttp.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.com/items", []byte("text")))
			req.Header.Set("Idempotency-Key", strconv.FormatInt(n, 10))
			resp := must(client.Do(req))
			must(io.Copy(io.Discard, resp.Body))
			require.NoError(t, resp.Body.Close())
			require.Equal(t, 200, resp.StatusCode)
		}
	})
	return time.Since(start)
}

const gap = 101 * time.Millisecond // the time between two calls of PerSecond(10)

// All calls succeed after a storm of refusals or failures, in little more than its time, and by an API that fails now
// and then in little more than the attempts take. Each attempt has a permit.
func TestStorm_TakesLittleMoreThanItsTime(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	s, trouble := time.Second, []step{dial, reset, status(500), status(502), status(503)}
	twice := func(what step) []storm {
		return []storm{{10 * s, 20 * s, what, true}, {40 * s, 45 * s, what, true}}
	}
	for _, c := range []struct {
		name   string
		storms []storm
		flaky  []step
		bare   bool          // without a queue
		ideal  time.Duration // in addition to the calls' own time, or to that of the attempts of an API that is flaky
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
		{name: "a flaky API", flaky: trouble},
		{name: "a flaky API, bare bucket", flaky: trouble, bare: true},
	} {
		bubble(t, c.name, func(t *testing.T) {
			const workers, calls = 20, 1200
			api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(10, time.Second)}, Latency: 50 * time.Millisecond}
			w := &weather{api: api, storms: c.storms, flaky: c.flaky, start: time.Now()}
			b := bucket(t, outbound.PerSecond(10))
			var limiter outbound.Limiter = b
			if !c.bare {
				limiter = queue.New(b, queue.Config{})
			}
			admitted, wait := 0, time.Duration(0)
			if c.bare || c.flaky != nil { // on a bare bucket workers compete at random, and one may wait for long
				wait = time.Hour
			}
			client := paced(wait, w, count(&admitted, limiter))
			if c.flaky != nil {
				client.RetryMax = 20
			}
			took := work(t, client, workers, calls)
			ideal := (calls-1)*gap + api.Latency + c.ideal
			if c.flaky != nil {
				ideal = time.Duration(w.arrived-1) * gap
			}
			t.Logf("%v, %.3f of the ideal, %d arrived, %d refused", took, float64(took)/float64(ideal), w.arrived, w.refused)
			require.LessOrEqual(t, float64(took), 1.1*float64(ideal))
			require.Equal(t, admitted, w.arrived, "attempts that were not admitted")
			require.NoError(t, w.history.Check(1, 1/gap.Seconds(), 0.05)) // the queue's tolerance of 5 ms
			require.Zero(t, api.Report().Refused)
			require.Equal(t, calls, api.Report().Admitted)
		})
	}
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
		states := must(b.States(t.Context()))
		for _, s := range states {
			require.Zero(t, s.Level, "%v", s.Limit)
		}
	})
}

// An API that fails for 60 s gets at most 1.2 times the fresh requests. Without a budget it gets five
// times as many. After enough successes, requests are sent again as before.
func TestBudget_BoundsTheRetriesOfAStorm(t *testing.T) {
	for name, fails := range map[string]step{"429": status(429), "503": status(503), "reset": reset, "no connection": dial} {
		for _, budget := range []int{500, 0} {
			synctest.Test(t, func(t *testing.T) {
				w := &weather{api: &outboundtest.API{}, start: time.Now()}
				client := Config{Budget: budget}.NewClient(&transport.Transport{Base: w})
				client.RetryWaitMin, client.RetryWaitMax = time.Second, 2*time.Second
				next := func() (perFresh float64) { // requests in a storm
					begin := time.Since(w.start)
					w.storms, w.refused = []storm{{begin, begin + time.Minute, fails, false}}, 0
					const fresh = 600
					calls(t, client, fresh, 100*time.Millisecond)
					return float64(w.refused) / fresh
				}
				got := next()
				if budget == 0 {
					require.Greater(t, got, 4., name)
					return
				}
				require.LessOrEqual(t, got, 1.2, name)
				require.Greater(t, got, 1.05, "%s: the budget is used", name)
				again := next()
				require.LessOrEqual(t, again, 1.01, "%s: no success has returned any", name)
				calls(t, client, 550, 100*time.Millisecond)
				again = next()
				require.InDelta(t, got, again, 0.01, "%s: 550 successes have filled the budget", name)
			})
		}
	}
}

// calls makes n fresh requests, one each pause, and waits for all.
func calls(t *testing.T, client *retryablehttp.Client, n int, pause time.Duration) {
	all(t, n, func(i int) {
		time.Sleep(time.Duration(i) * pause)
		_, _ = get(t, client)
	})
}

// A retry that succeeds returns some of what it took, so that rare failures are always sent again.
func TestBudget_RareFailuresAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := []step{}
		for range 200 {
			steps = append(steps, status(503))
			for range 10 { // the retry, and nine others
				steps = append(steps, status(200))
			}
		}
		api := play(steps...)
		client := Config{Budget: 30}.NewClient(&transport.Transport{Base: api})
		for range 2000 {
			answered(t, 200, client)
		}
	})
}
