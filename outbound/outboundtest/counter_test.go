package outboundtest_test

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

func byPath(r *http.Request) string { return r.URL.Path[1:] }

// With By each key has a count of its own.
func TestBy_EachKeyHasTheWholeLimit(t *testing.T) {
	for name, rule := range map[string]Rule{
		"LeakyBucket":     LeakyBucket(2, 1),
		"FixedWindow":     FixedWindow(2, time.Hour),
		"FirstCallWindow": FirstCallWindow(2, time.Hour),
		"SlidingLog":      SlidingLog(2, time.Hour),
	} {
		bubble(t, name, func(t *testing.T) {
			api := &API{Rules: []Rule{rule.By(byPath)}}
			for _, path := range []string{"/a", "/b"} {
				tell(t, api, "GET", path, 0).want(t, 200)
				tell(t, api, "GET", path, 0).want(t, 200)
				tell(t, api, "GET", path, 0).want(t, 429)
			}
			for range 5 {
				tell(t, api, "GET", "/", 0).want(t, 200)
			}
			api = &API{Rules: []Rule{rule.By(byPath).By(nil)}}
			tell(t, api, "GET", "/a", 0).want(t, 200)
			tell(t, api, "GET", "/b", 0).want(t, 200)
			tell(t, api, "GET", "/c", 0).want(t, 429)
		})
	}
}

// With By each key has its own calls in flight.
func TestBy_CountsCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &API{Rules: []Rule{InFlight(2).By(byPath)}, Latency: time.Second}
		var wg sync.WaitGroup
		for _, path := range []string{"/a", "/a", "/b", "/", "/", "/"} {
			wg.Go(func() { tell(t, api, "GET", path, 0).want(t, 200) })
		}
		synctest.Wait()
		wg.Go(func() { tell(t, api, "GET", "/a", 0).want(t, 429, "Retry-After") })
		wg.Go(func() { tell(t, api, "GET", "/b", 0).want(t, 200) })
		wg.Wait()
		for range 3 {
			tell(t, api, "GET", "/a", 0).want(t, 200)
		}
		r := api.Report()
		errorIf(t, r.InProgress != 0 || r.Peak != 7, "report %+v, want none in progress and a peak of 7", r)
	})
}

// A settled call counts as what it has used.
func TestSettle_CountsWhatWasUsed(t *testing.T) {
	used := func(n float64) func(*http.Request) float64 { return func(*http.Request) float64 { return n } }
	for name, rule := range map[string]Rule{
		"LeakyBucket":     LeakyBucket(10, 0.001),
		"FixedWindow":     FixedWindow(10, time.Hour),
		"FirstCallWindow": FirstCallWindow(10, time.Hour),
		"SlidingLog":      SlidingLog(10, time.Hour),
	} {
		for n, want := range map[float64]int{ // by the units that a call uses, of the 4 it asks for
			0: 1000, 1: 7, 4: 2, 25: 1,
		} {
			synctest.Test(t, func(t *testing.T) {
				asked := rule.Of("units", func(*http.Request) float64 { return 4 })
				api := &API{Rules: []Rule{asked.Settle(used(n))}}
				equal(t, admits(t, api), want, "%s: calls that use %g of 10 units", name, n)
				api = &API{Rules: []Rule{asked.Settle(used(n)).Settle(nil)}}
				equal(t, admits(t, api), 2, "%s: calls that use what they ask for", name)
			})
		}
	}
}
