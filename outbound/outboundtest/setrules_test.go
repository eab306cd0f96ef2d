package outboundtest_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// admits returns how many calls of one unit go before the API refuses one.
func admits(t *testing.T, api *API) int {
	t.Helper()
	for n := range 1000 {
		if status, _ := callAPI(t, api, 1); status != http.StatusOK {
			return n
		}
	}
	return 1000
}

// A rule of the same kind goes on with the count of the one that it replaces.
func TestSetRules_KeepsWhatWasCounted(t *testing.T) {
	const s = time.Second
	unit := func(r Rule) Rule { return r.Of("units", byHeader) }
	tests := []struct {
		name     string
		old, new Rule
		pause    time.Duration // between five calls with the old rule, and the new one
		want     int           // calls then
		later    time.Duration
		wantThen int
	}{
		{"a bucket that doubles", LeakyBucket(10, 1), LeakyBucket(20, 2), 2 * s, 17, s, 2},
		{"a bucket that shrinks", LeakyBucket(10, 1), LeakyBucket(3, 1), 0, 0, 3 * s, 1},
		{"a bucket that leaks at its old rate until then", LeakyBucket(10, 1), LeakyBucket(10, 10), 2 * s, 7, 0, 0},
		{"a window of the clock", FixedWindow(10, time.Minute), FixedWindow(12, time.Minute), s, 7, 59 * s, 12},
		{"a window from the first call on", FirstCallWindow(10, time.Minute), FirstCallWindow(12, time.Minute), s, 7, 59 * s, 12},
		{"a log", SlidingLog(10, time.Minute), SlidingLog(7, time.Minute), s, 2, 59 * s, 5},
		{"a calendar", CalendarWindow(10, Hour, time.UTC), CalendarWindow(12, Hour, zone(t, "Asia/Tokyo")), s, 7, 3599 * s, 12},
		{"a calendar whose period has ended", CalendarWindow(10, Hour, time.UTC), CalendarWindow(12, Hour, time.UTC), 3600 * s, 12, 0, 0},
		{"another period starts empty", CalendarWindow(10, Hour, time.UTC), CalendarWindow(10, Day, time.UTC), s, 10, 0, 0},
		{"another zone's day starts empty", CalendarWindow(10, Day, time.UTC), CalendarWindow(10, Day, zone(t, "Asia/Tokyo")), s, 10, 0, 0},
		{"a window of the clock is no calendar", FixedWindow(10, time.Hour), CalendarWindow(10, Hour, time.UTC), s, 10, 0, 0},
		{"another kind starts empty", SlidingLog(10, time.Minute), FixedWindow(10, time.Minute), s, 10, 0, 0},
		{"another kind of window starts empty", FirstCallWindow(10, time.Minute), FixedWindow(10, time.Minute), s, 10, 0, 0},
		{"another window of the clock starts empty", FixedWindow(10, time.Minute), FixedWindow(10, time.Hour), s, 10, 0, 0},
		{"a rule by key starts empty", SlidingLog(10, time.Hour), SlidingLog(10, time.Hour).By(byPath), s, 10, 0, 0},
		{"a rule without keys starts empty", SlidingLog(10, time.Hour).By(byPath), SlidingLog(10, time.Hour), s, 10, 0, 0},
		{"another window starts empty", SlidingLog(10, time.Minute), SlidingLog(10, time.Hour), s, 10, 0, 0},
		{"another unit starts empty", unit(LeakyBucket(10, 1)), LeakyBucket(10, 1), 0, 10, 0, 0},
		{"the same unit does not", unit(LeakyBucket(10, 1)), unit(LeakyBucket(10, 1)), 0, 5, 0, 0},
		{"calls in progress", InFlight(1), InFlight(2), 0, 1000, 0, 1000},
		{"a penalty", Penalty(1, s, time.Minute, nil), Penalty(5, s, time.Minute, nil), 0, 1000, 0, 1000},
	}
	for _, test := range tests {
		bubble(t, test.name, func(t *testing.T) {
			api := &API{Rules: []Rule{test.old}}
			for range 5 {
				callAPI(t, api, 1)
			}
			time.Sleep(test.pause)
			api.SetRules(test.new)
			equal(t, admits(t, api), test.want, "calls after the change")
			time.Sleep(test.later)
			equal(t, admits(t, api), test.wantThen, "calls %v later", test.later)
		})
	}
}

// Rules change at any time, and counts go on.
func TestSetRules_WhileCallsRun(t *testing.T) {
	bubble(t, "Of several rules of one kind each goes on with that of its window", func(t *testing.T) {
		api := &API{Rules: []Rule{SlidingLog(100, time.Second), SlidingLog(10, time.Hour), SlidingLog(50, time.Hour)}}
		for range 8 {
			callAPI(t, api, 1)
		}
		time.Sleep(time.Second)
		api.SetRules(SlidingLog(20, time.Hour), SlidingLog(30, time.Hour), SlidingLog(100, time.Second)) // in another order
		equal(t, admits(t, api), 12, "calls: 8 of 20 were counted in this hour")
	})
	bubble(t, "SetRules keeps the counts of keys, and the calls in flight", func(t *testing.T) {
		path := func(r *http.Request) string { return r.URL.Path }
		rules := func(n int) []Rule {
			return []Rule{InFlight(n).By(path), FixedWindow(float64(10*n), time.Hour).By(path)}
		}
		api := &API{Rules: rules(1), Latency: time.Second}
		var wg sync.WaitGroup
		for _, path := range []string{"/a", "/b"} {
			wg.Go(func() { tell(t, api, "GET", path, 0).want(t, 200) })
		}
		synctest.Wait()
		tell(t, api, "GET", "/a", 0).want(t, 429) // takes its second too
		wg.Wait()
		wg.Go(func() { tell(t, api, "GET", "/a", 0).want(t, 200) })
		synctest.Wait()
		api.SetRules(rules(2)...)
		wg.Go(func() { tell(t, api, "GET", "/a", 0).want(t, 200) })
		synctest.Wait()
		tell(t, api, "GET", "/a", 0).want(t, 429)
		wg.Wait()
		api.SetRules(rules(1)...)
		for i := range 8 { // 3 of 10 were counted; calls that began under old rules have ended under new ones
			status := 200
			if i == 7 {
				status = 429
			}
			tell(t, api, "GET", "/a", 0).want(t, status)
		}
	})
	bubble(t, "The zero Rule panics, and changes nothing. Before the first call SetRules replaces even that", func(t *testing.T) {
		api := &API{Rules: []Rule{{}}} // the API must not look at it
		api.SetRules(SlidingLog(3, time.Second))
		callAPI(t, api, 1)
		wantPanic(t, "rule 1 of an API is the zero Rule", func() { api.SetRules(SlidingLog(9, time.Second), Rule{}) })
		equal(t, admits(t, api), 2, "calls after one of three")
	})
	bubble(t, "A call whose cost is asked during a change counts by the new rules. A cost that panics then leaves the API usable", func(t *testing.T) {
		changing := func(costs float64) *API {
			var api API
			api.Rules = []Rule{SlidingLog(1, time.Hour).Of("old", func(*http.Request) float64 {
				api.SetRules(SlidingLog(1, time.Hour).Of("new", func(*http.Request) float64 { return costs }))
				return 1
			})}
			return &api
		}
		tell(t, changing(2), "GET", "/", 0).want(t, 429)
		api := changing(-1)
		wantPanic(t, "costs -1 new", func() { api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) })
		api.SetRules()
		tell(t, api, "GET", "/", 0).want(t, 200)
	})
}
