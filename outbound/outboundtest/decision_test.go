package outboundtest_test

import (
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"testing"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

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
