package outboundtest_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// An API counts calls, and answers those that it admits.
func TestAPI_CountsAndAnswers(t *testing.T) {
	bubble(t, "An API keeps a history of all arrivals, and one of the calls that it has admitted", func(t *testing.T) {
		api := &API{Rules: []Rule{SlidingLog(2, time.Second)}}
		begin := time.Now()
		for _, gap := range []time.Duration{0, 0, 0, 400, 600, 0, 0, 0, 1500} {
			time.Sleep(gap * time.Millisecond)
			callAPI(t, api, 1)
		}
		if w := api.Arrivals().Worst(time.Second); w.Units != 5 || !w.Start.Equal(begin.Add(400*time.Millisecond)) {
			t.Errorf("fullest second of arrivals %+v, want 5 from 400ms on", w)
		}
		if w := api.Admitted().Worst(time.Second); w.Units != 2 || !w.Start.Equal(begin) {
			t.Errorf("fullest second of admitted calls %+v, want 2 from the first on", w)
		}
		var times []time.Duration
		for at, units := range api.Admitted().All() {
			times = append(times, at.Sub(begin))
			errorIf(t, units != 1, "a call of %g units", units)
		}
		errorIf(t, len(times) != 5 || times[1] != 0 || times[2] != time.Second || times[4] != 2500*time.Millisecond,
			"admitted at %v, want 0s 0s 1s 1s 2.5s", times)
		want := Report{Arrivals: 9, Admitted: 5, Refused: 4, Answered: 5, Peak: 1}
		equal(t, api.Report(), want, "the report")
	})
	bubble(t, "InFlight counts a call from its arrival to its answer", func(t *testing.T) {
		api := &API{Rules: []Rule{InFlight(3)}, Latency: time.Second}
		statuses := make(map[int]int)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				status, after := callAPI(t, api, 1)
				errorIf(t, after != "", "Retry-After %q, want none: nobody knows when a call ends", after)
				mu.Lock()
				defer mu.Unlock()
				statuses[status]++
			})
		}
		time.Sleep(500 * time.Millisecond)
		r := api.Report()
		errorIf(t, r.InProgress != 3 || r.Peak != 3 || r.Answered != 0, "meanwhile: %+v, want 3 in progress", r)
		time.Sleep(500*time.Millisecond - 1) // a nanosecond before the first one ends
		tell(t, api, "GET", "/", 0).want(t, 429)
		wg.Wait()
		errorIf(t, statuses[200] != 3 || statuses[429] != 7,
			"statuses %v, want 3 times 200 and 7 times 429", statuses)
		for range 3 {
			tell(t, api, "GET", "/", 0).want(t, 200)
		}
		want := Report{Arrivals: 14, Admitted: 6, Refused: 8, Answered: 6, Peak: 3}
		equal(t, api.Report(), want, "the report")
	})
	bubble(t, "A refusal by InFlight has no Retry-After, because it is unknown when a call ends", func(t *testing.T) {
		for _, rules := range [][]Rule{
			{InFlight(1), SlidingLog(1, time.Minute)},
			{SlidingLog(1, time.Minute), InFlight(1)},
		} {
			api := &API{Rules: rules, Latency: time.Second}
			go callAPI(t, api, 1)
			synctest.Wait()
			tell(t, api, "GET", "/", 0).want(t, 429, "Retry-After")
			synctest.Wait() // both calls end in the same instant
			tell(t, api, "GET", "/", 0).want(t, 429, "Retry-After: 59")
		}
	})
	bubble(t, "The body of a refusal names each rule that the call breaks", func(t *testing.T) {
		api := &API{Rules: []Rule{SlidingLog(1, time.Second), LeakyBucket(9, 1), FixedWindow(1, time.Minute)}}
		for _, want := range []string{"ok", "too many: the limit is 1 calls in any 1s, and 1 calls in each 1m0s of the clock\n"} {
			r := tell(t, api, "GET", "/", 0)
			errorIf(t, r.body != want, "body %q, want %q", r.body, want)
		}
	})
	bubble(t, "Next answers admitted calls, and sees no others", func(t *testing.T) {
		asked := 0
		api := &API{
			Rules: []Rule{SlidingLog(1, time.Second)},
			Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked++
				time.Sleep(time.Second - 1) // in progress until here, so the next call still finds it in the log
				w.WriteHeader(http.StatusTeapot)
			}),
		}
		tell(t, api, "GET", "/", 0).want(t, 418)
		tell(t, api, "GET", "/", 0).want(t, 429)
		errorIf(t, asked != 1, "Next was asked %d times, want once", asked)
	})
	t.Run("A call whose caller has given up is admitted and not answered", func(t *testing.T) {
		api := &API{Latency: time.Hour}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		rec := httptest.NewRecorder()
		api.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
		errorIf(t, rec.Code != http.StatusServiceUnavailable, "status %d, want 503", rec.Code)
		if r := api.Report(); r.Admitted != 1 || r.Answered != 0 || r.InProgress != 0 {
			t.Errorf("report %+v, want a call admitted and not answered", r)
		}
	})
	t.Run("A call in which Next panics has ended", func(t *testing.T) {
		api := &API{
			Rules: []Rule{InFlight(1)},
			Next:  http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(errors.New("broken")) }),
		}
		for range 2 { // the first is no longer in progress
			func() {
				defer func() { recover() }()
				api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
			}()
		}
		want := Report{Arrivals: 2, Admitted: 2, Peak: 1}
		equal(t, api.Report(), want, "the report")
	})
	bubble(t, "Latency delays answers and refusals. The Date and the history have the time of the arrival", func(t *testing.T) {
		api := &API{Rules: []Rule{SlidingLog(2, time.Hour)}, Latency: 3 * time.Second}
		begin := time.Now()
		tell(t, api, "GET", "/", 0).want(t, 200, "Date: Sat, 01 Jan 2000 00:00:00 GMT")
		time.Sleep(time.Second - 1)
		tell(t, api, "GET", "/", 0).want(t, 200, "Date: Sat, 01 Jan 2000 00:00:03 GMT")
		tell(t, api, "GET", "/", 0).want(t, 429, "Date: Sat, 01 Jan 2000 00:00:06 GMT")
		if took, span := time.Since(begin), api.Arrivals().Total().Span(); took != 10*time.Second-1 || span != 7*time.Second-1 {
			t.Errorf("took %v, with arrivals in %v, want 9.999999999s and 6.999999999s", took, span)
		}
	})
	t.Run("An answer has the API's date, unless Next has set another", func(t *testing.T) {
		server := httptest.NewServer(&API{Skew: -time.Hour, Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/own" {
				w.Header().Set("Date", "yesterday")
			}
		})})
		defer server.Close()
		for path, own := range map[string]bool{"/": false, "/own": true} {
			res, err := server.Client().Get(server.URL + path)
			must(t, err)
			res.Body.Close()
			date, err := http.ParseTime(res.Header.Get("Date"))
			if len(res.Header.Values("Date")) != 1 || own != (res.Header.Get("Date") == "yesterday") || !own && (err != nil || time.Since(date) < time.Hour || time.Since(date) > time.Hour+time.Minute) {
				t.Errorf("Date %q, %v", res.Header.Get("Date"), err)
			}
		}
	})
	bubble(t, "A latency that overflows lasts until the caller gives up", func(t *testing.T) {
		api := &API{Latency: 1<<63 - 1, Jitter: 1<<63 - 1}
		client := &http.Client{Transport: api, Timeout: 24 * time.Hour}
		_, err := client.Get("http://api.example.com/")
		errorIf(t, err == nil, "answered within a day")
	})
}

// A rule or a cost that is invalid panics, and nothing is counted.
func TestAPI_PanicsOnInvalidRulesAndCosts(t *testing.T) {
	for range 2 { // the first failure must not leave an API without rules behind
		api := &API{Rules: []Rule{LeakyBucket(1, 1), {}}}
		for range 2 {
			wantPanic(t, "rule 1 of an API is the zero Rule", func() {
				api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
			})
		}
	}
	for _, skew := range []time.Duration{math.MinInt64, math.MaxInt64} {
		wantPanic(t, "a skew of", func() {
			(&API{Skew: skew}).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		})
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
		wantPanic(t, "tokens: must be finite", func() {
			(&API{Rules: []Rule{LeakyBucket(1, 1).Of("tokens", nil).Settle(func(*http.Request) float64 { return bad })}}).
				ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		})
		api := &API{Rules: []Rule{LeakyBucket(1, 1).Of("tokens", func(*http.Request) float64 { return bad })}}
		body := &countingBody{}
		wantPanic(t, "tokens: must be finite", func() {
			api.RoundTrip(&http.Request{URL: mustURL("http://api.example.com/"), Body: body})
		})
		errorIf(t, body.closed != 1, "body closed %d times, want once", body.closed)
		equal(t, api.Report(), (Report{}), "a call of %g units was counted", bad)
	}
}

// Skew moves the date, the resets and the windows of the clock.
func TestAPI_SkewMovesItsClock(t *testing.T) {
	for skew, want := range map[time.Duration][2]string{
		0:                 {"Sat, 01 Jan 2000 00:59:50 GMT", "946688400"},
		5 * time.Minute:   {"Sat, 01 Jan 2000 00:59:50 GMT", "946688400"},
		-90 * time.Minute: {"Fri, 31 Dec 1999 23:59:50 GMT", "946684800"},
		time.Hour * 9000:  {"Wed, 10 Jan 2001 00:59:50 GMT", "979088400"},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := GitHub(FixedWindow(1, time.Hour))
			api.Skew = skew
			time.Sleep(time.Hour - 10*time.Second - skew%time.Hour)
			for _, status := range []int{200, 403} {
				tell(t, api, "GET", "/", 0).want(t, status, "Date: "+want[0], "X-RateLimit-Reset: "+want[1])
			}
			time.Sleep(10*time.Second - 1)
			tell(t, api, "GET", "/", 0).want(t, 403)
			time.Sleep(time.Nanosecond)
			tell(t, api, "GET", "/", 0).want(t, 200)
			equal(t, api.Admitted().Total().End, time.Now(), "the last departure, by the caller's clock")
		})
	}
}

// Jitter delays answers by up to its length, in another order, and alike in each run.
func TestJitter_ReordersAnswersReproducibly(t *testing.T) {
	run := func(latency, jitter time.Duration) (order []string, took []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			api := RateLimitFields(FixedWindow(1000, time.Hour).Of("h", nil))
			api.Latency, api.Jitter = latency, jitter
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range 200 {
				wg.Go(func() {
					begin := time.Now()
					r := tell(t, api, "GET", "/", 0)
					mu.Lock()
					defer mu.Unlock()
					order, took = append(order, r.Get("RateLimit")), append(took, time.Since(begin))
				})
				synctest.Wait()
				time.Sleep(time.Millisecond)
			}
			wg.Wait()
		})
		return order, took
	}
	order, took := run(50*time.Millisecond, 150*time.Millisecond)
	if low, high := slices.Min(took), slices.Max(took); low < 50*time.Millisecond || high > 200*time.Millisecond || low > 60*time.Millisecond || high < 190*time.Millisecond {
		t.Errorf("answers after %v to %v, want them spread from 50ms to 200ms", low, high)
	}
	errorIf(t, slices.IsSortedFunc(order, func(a, b string) int { return -compareRemaining(a, b) }),
		"no answer came late")
	again, _ := run(50*time.Millisecond, 150*time.Millisecond)
	errorIf(t, !slices.Equal(order, again), "another run had another order")
	if order, took := run(-time.Second, -time.Second); slices.Max(took) != 0 || !slices.IsSortedFunc(order, func(a, b string) int { return -compareRemaining(a, b) }) {
		t.Errorf("without a latency or a jitter: answers after up to %v", slices.Max(took))
	}
}

// compareRemaining compares what remains by two RateLimit fields.
func compareRemaining(a, b string) int {
	var x, y int
	fmt.Sscanf(a, `"h";r=%d`, &x)
	fmt.Sscanf(b, `"h";r=%d`, &y)
	return x - y
}

// A Decision says what a call has met.
func TestDecision(t *testing.T) {
	bubble(t, "A Decision has limit, remaining, reset and key of each rule", func(t *testing.T) {
		start := time.Now().UTC()
		time.Sleep(15 * time.Minute)
		var got Decision
		api := &API{
			Rules: []Rule{
				LeakyBucket(40, 2),
				FixedWindow(10, time.Hour).Of("windowed", byHeader),
				FirstCallWindow(10, time.Hour).Of("from first", byHeader).Settle(func(*http.Request) float64 { return 1 }),
				SlidingLog(10, time.Hour).Of("logged", byHeader).By(byPath),
				SlidingLog(10, time.Hour).By(func(*http.Request) string { return "" }),
				InFlight(3),
				Penalty(2, time.Minute, time.Hour, nil),
			},
			Vendor: func(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
				got = *d
				next.ServeHTTP(w, r)
			},
		}
		const h = time.Hour
		call := func(path string, cost float64, want Decision) {
			t.Helper()
			want.At = time.Now().UTC()
			send(t, api, "GET", path, 0, cost)
			errorIf(t, !got.At.Equal(want.At) || got.At.Location() != time.UTC, "at %v, want %v", got.At, want.At)
			got.At = want.At
			errorIf(t, !reflect.DeepEqual(got, want), "after %v\ngot  %+v\nwant %+v", time.Since(start), got, want)
		}
		call("/a", 4, Decision{Counts: []Count{
			{Unit: "calls", Window: 20 * time.Second, Limit: 40, Remaining: 39, Reset: time.Second / 2, Cost: 1, Used: 1},
			{Unit: "windowed", Window: h, Limit: 10, Remaining: 6, Reset: 45 * time.Minute, Cost: 4, Used: 4},
			{Unit: "from first", Window: h, Limit: 10, Remaining: 9, Reset: h, Cost: 4, Used: 1},
			{Unit: "logged", Key: "a", Window: h, Limit: 10, Remaining: 6, Reset: h, Cost: 4, Used: 4},
			{Unit: "calls", Limit: 3, Remaining: 2, Cost: 1, Used: 1},
		}})
		time.Sleep(250 * time.Millisecond)
		call("/b", 7, Decision{Refused: true, RetryAfter: 45*time.Minute - time.Second/4, Counts: []Count{
			{Unit: "calls", Window: 20 * time.Second, Limit: 40, Remaining: 39.5, Reset: time.Second / 4, Cost: 1, Used: 1},
			{Unit: "windowed", Window: h, Limit: 10, Remaining: 6, Reset: 45*time.Minute - time.Second/4, Cost: 7, Used: 7, Broken: true, RetryAfter: 45*time.Minute - time.Second/4},
			{Unit: "from first", Window: h, Limit: 10, Remaining: 9, Reset: h - time.Second/4, Cost: 7, Used: 1},
			{Unit: "logged", Key: "b", Window: h, Limit: 10, Remaining: 10, Cost: 7, Used: 7},
			{Unit: "calls", Limit: 3, Remaining: 3, Cost: 1, Used: 1},
		}})
		call("/", 11, Decision{Refused: true, Counts: []Count{ // nothing tells when: never
			{Unit: "calls", Window: 20 * time.Second, Limit: 40, Remaining: 39.5, Reset: time.Second / 4, Cost: 1, Used: 1},
			{Unit: "windowed", Window: h, Limit: 10, Remaining: 6, Reset: 45*time.Minute - time.Second/4, Cost: 11, Used: 11, Broken: true},
			{Unit: "from first", Window: h, Limit: 10, Remaining: 9, Reset: h - time.Second/4, Cost: 11, Used: 1, Broken: true},
			{Unit: "calls", Limit: 3, Remaining: 3, Cost: 1, Used: 1},
		}})
		time.Sleep(30 * time.Minute)
		call("/", 0, Decision{Refused: true, RetryAfter: h / 2, Counts: []Count{
			{Unit: "calls", Window: 20 * time.Second, Limit: 40, Remaining: 40, Cost: 1, Used: 1},
			{Unit: "windowed", Window: h, Limit: 10, Remaining: 6, Reset: 15*time.Minute - time.Second/4},
			{Unit: "from first", Window: h, Limit: 10, Remaining: 9, Reset: 30*time.Minute - time.Second/4, Used: 1},
			{Unit: "calls", Limit: 3, Remaining: 3, Cost: 1, Used: 1},
			{Unit: "refusals", Window: time.Minute, Limit: 2, Reset: h / 2, Cost: 1, Used: 1, Broken: true, RetryAfter: h / 2},
		}})
	})
	bubble(t, "What remains is a whole number where sums of fractions round, and a reset is rounded up to the nanosecond", func(t *testing.T) {
		api := OpenAI(SlidingLog(2.3, time.Hour).Of("tokens", func(*http.Request) float64 { return 0.1 }))
		for range 3 { // the sum is 0.30000000000000004
			tell(t, api, "GET", "/", 0).want(t, 200, "X-RateLimit-Remaining-Tokens: 2")
		}
		tell(t, api, "GET", "/", 0).want(t, 200, "X-RateLimit-Remaining-Tokens: 1")
		api = &API{Rules: []Rule{LeakyBucket(10, 3)}}
		api.Vendor = func(_ http.ResponseWriter, _ *http.Request, d *Decision, _ http.Handler) {
			equal(t, d.Counts[0].Reset, 333_333_334, "a reset after a third of a second, rounded up")
		}
		tell(t, api, "GET", "/", 0).want(t, 200)
	})
	bubble(t, "A late answer has the counts and the date of its arrival", func(t *testing.T) {
		api := RateLimitFields(FixedWindow(5, time.Hour).Of("hourly", nil))
		api.Latency = time.Minute
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				tell(t, api, "GET", "/", 0).want(t, 200, fmt.Sprintf(`RateLimit: "hourly";r=%d;t=%d`, 4-i, 3600-i),
					fmt.Sprintf("Date: Sat, 01 Jan 2000 00:00:%02d GMT", i))
			})
			time.Sleep(time.Second)
		}
		wg.Wait()
	})
}
