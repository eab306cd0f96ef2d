package queue

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/transport"
)

// load is what comes to a limit, and how long the API takes.
type load struct {
	perSecond, seconds int
	budget             func(*rand.Rand) time.Duration                // of a call's ctx
	takes              func(*rand.Rand, time.Duration) time.Duration // so long after the start
	limits             []outbound.Limit
	config             Config
	processes          int           // on one store, or 0 for none
	way                time.Duration // to the store, and the same back
	endless            bool          // every third call has no deadline, and is not counted
}

// fates are what became of the calls.
type fates struct {
	answered, refused int
	died              int // sent, and without an answer at their deadline
	unanswered        uint64
}

// run returns the outcomes of the calls.
func (l load) run(t *testing.T) (o fates) {
	synctest.Test(t, func(t *testing.T) {
		r, begin := rand.New(rand.NewPCG(1, 2)), time.Now()
		var mu sync.Mutex
		api := roundTripper(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			d := l.takes(r, time.Since(begin))
			mu.Unlock()
			select {
			case <-time.After(d):
				return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("ok")), Request: req, Header: http.Header{}}, nil
			case <-req.Context().Done():
				return nil, req.Context().Err()
			}
		})
		var clients []*http.Client
		var queues []*Queue
		memory := farAway{store.NewMemory(), l.way}
		for range max(1, l.processes) {
			b := bucket(t, l.limits...)
			if l.processes > 0 {
				b = shared(t, memory, l.limits...)
			}
			queues = append(queues, New(b, l.config))
			clients = append(clients, &http.Client{Transport: &transport.Transport{Base: api, Limiter: queues[len(queues)-1]}})
		}
		var wg sync.WaitGroup
		for i := range l.perSecond * l.seconds {
			budget := l.budget(r)
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), budget)
				defer cancel()
				endless := l.endless && i%3 == 0
				if endless {
					ctx = t.Context()
				}
				req, _ := http.NewRequestWithContext(ctx, "GET", "http://api.test/", nil)
				resp, err := clients[i%len(clients)].Do(req)
				if err == nil {
					resp.Body.Close()
				}
				mu.Lock()
				defer mu.Unlock()
				switch {
				case endless:
				case err == nil:
					o.answered++
				case errors.Is(err, outbound.ErrThrottled):
					o.refused++
				default:
					o.died++
				}
			})
			time.Sleep(time.Second / time.Duration(l.perSecond))
		}
		wg.Wait()
		for _, q := range queues {
			o.unanswered += q.Stats().Unanswered
		}
	})
	return o
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func always(d time.Duration) func(*rand.Rand) time.Duration {
	return func(*rand.Rand) time.Duration { return d }
}

func steady(d time.Duration) func(*rand.Rand, time.Duration) time.Duration {
	return func(*rand.Rand, time.Duration) time.Duration { return d }
}

// tailed takes times whose 99th percentile is ten times their median.
func tailed(median time.Duration) func(*rand.Rand, time.Duration) time.Duration {
	return func(r *rand.Rand, _ time.Duration) time.Duration {
		return time.Duration(float64(median) * math.Exp(r.NormFloat64()*math.Log(10)/2.326))
	}
}

// changing is 60 ms and 300 ms by turns of 10 s.
func changing(_ *rand.Rand, at time.Duration) time.Duration {
	if at/(10*time.Second)%2 == 0 {
		return 60 * ms
	}
	return 300 * ms
}

// In overload a queue that was told nothing answers at least 95 % of what it does with the best
// MaxWait. If calls may leave until their deadlines, few are answered: 50 of 600 at 10/s.
func TestCallTime_AnswersAsManyAsTheBestMaxWait(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	ten, hundred := []outbound.Limit{outbound.PerSecond(10)}, []outbound.Limit{outbound.PerSecond(100)}
	usual := load{perSecond: 15, seconds: 40, budget: always(2 * time.Second), takes: steady(300 * ms), limits: ten}
	inFlight, window, fleet, mixed, turns, tail, short := usual, usual, usual, usual, usual, usual, usual
	inFlight.limits = append(inFlight.limits, outbound.InFlight(10))
	window.limits = append(window.limits, outbound.Window(5_000, time.Hour))
	fleet.processes = 4
	mixed.endless = true
	turns.takes = changing
	tail.takes, tail.seconds = tailed(300*ms), 80
	short.budget, short.takes = always(400*ms), steady(100*ms)
	fast := load{perSecond: 150, seconds: 15, budget: always(2 * time.Second), takes: steady(30 * ms), limits: hundred}
	fastTail := fast
	fastTail.takes = tailed(30 * ms)
	for name, c := range map[string]struct {
		load
		most time.Duration // the best MaxWait of 0.2 s to 1.97 s
		want int
	}{
		"300 ms":              {usual, 1700 * ms, 400},
		"and calls in flight": {inFlight, 1700 * ms, 400},
		"and a window":        {window, 1700 * ms, 400},
		"four processes":      {fleet, 1700 * ms, 400},
		"a third endless":     {mixed, 0, 200}, // they take a third of the rate
		"by turns":            {turns, 1700 * ms, 390},
		"a long tail":         {tail, 200 * ms, 740},
		"a short budget":      {short, 300 * ms, 390},
		"100 a second":        {fast, 1970 * ms, 1620},
		"with a tail":         {fastTail, 1400 * ms, 1600},
	} {
		got, best := c.run(t), c.load
		best.config = Config{MaxWait: c.most, CallTime: -1}
		if c.most == 0 {
			best.config.CallTime = 300 * ms
		}
		if with := best.run(t); got.answered < with.answered*95/100 || got.answered < c.want {
			t.Errorf("%s: %+v, and with the best MaxWait %+v; want %d answered", name, got, with, c.want)
		}
		errorIf(t, got.unanswered != uint64(got.died) && !c.endless,
			"%s: Stats has %d unanswered, %d died", name, got.unanswered, got.died)
	}
	leaveBy := usual
	leaveBy.config.CallTime = -1
	if got := leaveBy.run(t); got.answered > 60 || got.died < 350 || got.unanswered != uint64(got.died) {
		t.Errorf("a negative CallTime: %+v, want calls that leave until their deadlines", got)
	}
}

// 70 calls a second with budgets of 0.5 s to 3 s come to 40 a second: nearly all that leave are
// answered, although the API becomes five times as slow and back each 10 s.
func TestCallTime_FollowsTheAPI(t *testing.T) {
	l := load{perSecond: 70, seconds: 60, limits: []outbound.Limit{outbound.PerSecond(40)}, takes: changing,
		budget: func(r *rand.Rand) time.Duration { return 500*ms + rand.N(2500*ms) }}
	got := l.run(t)
	errorIf(t, got.answered < 2300, "%+v, want 2,300 answered", got)
}

// A limit at half load refuses nothing, even if the API and a store take most of each budget.
func TestCallTime_RefusesNothingAtHalfLoad(t *testing.T) {
	for _, c := range []struct {
		budget, way time.Duration
		processes   int
		callTime    time.Duration
	}{
		{budget: 310 * ms}, {budget: 500 * ms}, {budget: 2 * time.Second}, {budget: 310 * ms, callTime: time.Second},
		{310 * ms, ms, 2, 0}, {420 * ms, 40 * ms, 1, 0}, {500 * ms, 40 * ms, 2, 0}, {500 * ms, 40 * ms, 2, time.Second},
	} {
		l := load{perSecond: 5, seconds: 60, budget: always(c.budget), takes: steady(300 * ms), limits: []outbound.Limit{outbound.PerSecond(10)},
			processes: c.processes, way: c.way, config: Config{CallTime: c.callTime}}
		got := l.run(t)
		errorIf(t, got != (fates{answered: 300}), "%+v: %+v", c, got)
	}
}

// What is learnt: nothing from refusals, failures and cancelled calls, and it is forgotten after a
// minute. A call that could leave immediately is never refused for it.
func TestCallTime_IsThatOfAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.PerSecond(10)), Config{})
		call := func(within, takes time.Duration, end func(*outbound.Permit)) error {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			p, err := q.Acquire(ctx, one)
			if err == nil {
				time.Sleep(takes)
				end(&p)
			}
			return err
		}
		refused := func(within time.Duration) bool {
			t.Helper()
			time.Sleep(time.Second)
			err := call(within, 0, (*outbound.Permit).Failed)
			errorIf(t, err != nil, "with capacity: %v", err)
			return errors.Is(call(within, 0, (*outbound.Permit).Failed), outbound.ErrThrottled)
		}
		errorIf(t, refused(110*ms), "refused before a call has ended")
		for range 40 { // the first take no time, as from a cache
			time.Sleep(time.Second)
			must(t, call(time.Minute, 0, (*outbound.Permit).Done))
		}
		for range 60 {
			time.Sleep(time.Second)
			must(t, call(time.Minute, 300*ms, (*outbound.Permit).Done))
		}
		for range 3 {
			errorIf(t, !refused(500*ms) || refused(900*ms), "300 ms were not learnt")
			for range 400 { // fast, and no answers
				_ = call(time.Hour, 0, (*outbound.Permit).Failed)
				_ = call(time.Hour, 0, func(p *outbound.Permit) { p.Answered(outbound.Answer{Kind: outbound.AnswerRefused}); p.Failed() })
				must(t, q.Bucket().Resume(t.Context()))
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				if p, err := q.Acquire(ctx, one); err == nil {
					cancel()
					p.Done()
				}
				cancel()
			}
			must(t, call(time.Hour, 300*ms, (*outbound.Permit).Done))
		}
		time.Sleep(time.Minute + time.Second)
		errorIf(t, refused(110*ms), "refused after a minute without a call")
		if n := q.Stats().Unanswered; n > 0 { // the cancelled ones
			t.Errorf("%d unanswered", n)
		}
	})
}

// farAway is a store whose requests take a while, and whose replies do not show it.
type farAway struct {
	store.Store
	way time.Duration // there, and the same back
}

func (f farAway) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	time.Sleep(f.way)
	r, err := f.Store.Update(ctx, key, op)
	time.Sleep(f.way)
	return r, err
}
