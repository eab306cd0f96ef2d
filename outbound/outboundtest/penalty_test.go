package outboundtest_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// A penalty follows on offences.
func TestPenalty(t *testing.T) {
	bubble(t, "A Penalty refuses all calls for its length after the last allowed offence in its window", func(t *testing.T) {
		api := &API{Rules: []Rule{SlidingLog(1, time.Second), Penalty(3, 10*time.Second, time.Minute, nil)}}
		call := func(at time.Duration, status int, after string) {
			t.Helper()
			time.Sleep(at)
			s, a := callAPI(t, api, 1)
			errorIf(t, s != status || a != after, "status %d, Retry-After %q, want %d, %q", s, a, status, after)
		}
		call(0, 200, "")
		call(0, 429, "1")
		call(0, 429, "1")
		call(10*time.Second, 200, "") // a nanosecond earlier the two would still count
		call(0, 429, "1")
		call(0, 429, "1")
		call(0, 429, "1") // the third
		call(0, 429, "60")
		call(30*time.Second, 429, "30") // refused, but no offence
		call(30*time.Second-1, 429, "1")
		call(1, 200, "")
		call(0, 429, "1")
		call(0, 429, "1")
		call(time.Second, 200, "") // the count has begun anew
	})
	bubble(t, "With By each key has its own offences, as the function judges answers", func(t *testing.T) {
		path := func(r *http.Request) string { return r.URL.Path }
		teapot := func(status int, h http.Header) bool { return status == http.StatusTeapot && h.Get("X-Bad") == "yes" }
		api := &API{Rules: []Rule{Penalty(2, time.Second, time.Minute, teapot).By(path)}}
		api.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Bad", "yes")
			w.WriteHeader(http.StatusTeapot)
		})
		tell(t, api, "GET", "/a", 0).want(t, 418)
		tell(t, api, "GET", "/b", 0).want(t, 418)
		tell(t, api, "GET", "/a", 0).want(t, 418)
		tell(t, api, "GET", "/a", 0).want(t, 429, "Retry-After: 60")
		tell(t, api, "GET", "/b", 0).want(t, 418)
		tell(t, api, "GET", "/b", 0).want(t, 429)
		tell(t, api, "GET", "/c", 0).want(t, 418)
	})
	bubble(t, "SetRules keeps the offences and the penalty", func(t *testing.T) {
		rules := []Rule{SlidingLog(1, time.Hour), Penalty(3, time.Minute, time.Hour, nil)}
		api := &API{Rules: rules}
		for range 3 { // one is answered, two are offences
			callAPI(t, api, 1)
		}
		api.SetRules(rules...)
		callAPI(t, api, 1)
		api.SetRules(rules...)
		time.Sleep(time.Hour - 1) // the log is empty a nanosecond later, and so is the penalty
		api.SetRules(rules[1])
		status, after := callAPI(t, api, 1)
		errorIf(t, status != 429 || after != "1", "status %d, Retry-After %q, want 429 with 1", status, after)
	})
	bubble(t, "Offences before a penalty do not count for the next one", func(t *testing.T) {
		api := &API{Rules: []Rule{Penalty(2, time.Hour, time.Minute, func(int, http.Header) bool { return true })}}
		for i := range 3 {
			tell(t, api, "GET", "/", 0).want(t, 200)
			tell(t, api, "GET", "/", 0).want(t, 200)
			if i < 2 {
				tell(t, api, "GET", "/", 0).want(t, 429, "Retry-After: 60")
				time.Sleep(time.Minute)
			}
		}
	})
	t.Run("A 103 before the answer is no offence", func(t *testing.T) {
		server := httptest.NewServer(&API{
			Rules: []Rule{Penalty(1, time.Hour, time.Hour, func(status int, _ http.Header) bool { return status < 200 })},
			Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusEarlyHints) // and then 200, without a word
			}),
		})
		defer server.Close()
		for range 2 {
			res, err := server.Client().Get(server.URL)
			must(t, err)
			res.Body.Close()
			errorIf(t, res.StatusCode != http.StatusOK, "status %d, want 200", res.StatusCode)
		}
	})
}
