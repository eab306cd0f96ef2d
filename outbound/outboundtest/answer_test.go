package outboundtest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// Latency delays answers and refusals. The Date and the history have the time of the arrival.
func TestAPI_DateIsThatOfTheArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		})
	}
}

// An answer has the API's date, unless Next has set another.
func TestAPI_HandlerMaySetTheDate(t *testing.T) {
	server := httptest.NewServer(&API{Skew: -time.Hour, Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/own" {
			w.Header().Set("Date", "yesterday")
		}
	})})
	defer server.Close()
	for path, own := range map[string]bool{"/": false, "/own": true} {
		res, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		date, err := http.ParseTime(res.Header.Get("Date"))
		if len(res.Header.Values("Date")) != 1 || own != (res.Header.Get("Date") == "yesterday") || !own && (err != nil || time.Since(date) < time.Hour || time.Since(date) > time.Hour+time.Minute) {
			t.Errorf("Date %q, %v", res.Header.Get("Date"), err)
		}
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
	if slices.IsSortedFunc(order, func(a, b string) int { return -compareRemaining(a, b) }) {
		t.Error("no answer came late")
	}
	if again, _ := run(50*time.Millisecond, 150*time.Millisecond); !slices.Equal(order, again) {
		t.Error("another run had another order")
	}
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

// A latency that overflows lasts until the caller gives up.
func TestAPI_EndlessLatencyEndsWithTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &API{Latency: 1<<63 - 1, Jitter: 1<<63 - 1}
		client := &http.Client{Transport: api, Timeout: 24 * time.Hour}
		if _, err := client.Get("http://api.example.com/"); err == nil {
			t.Error("answered within a day")
		}
	})
}
