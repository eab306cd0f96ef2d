package outboundtest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
)

// An API as the transport of a client: no network, no port.
func ExampleAPI() {
	api := &outboundtest.API{Rules: []outboundtest.Rule{
		outboundtest.SlidingLog(2, time.Hour),
	}}
	client := &http.Client{Transport: api}
	for range 3 {
		res, err := client.Get("http://api.example.com/items")
		if err != nil {
			fmt.Println(err)
			return
		}
		res.Body.Close()
		fmt.Println(res.Status)
	}
	r := api.Report()
	fmt.Printf("%d arrived, %d answered, %d refused\n", r.Arrivals, r.Answered, r.Refused)
	// Output:
	// 200 OK
	// 200 OK
	// 429 Too Many Requests
	// 3 arrived, 2 answered, 1 refused
}

// An API on a real port, for clients that need one.
func ExampleAPI_server() {
	api := &outboundtest.API{
		Rules: []outboundtest.Rule{outboundtest.InFlight(100)},
		Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusCreated)
		}),
	}
	server := httptest.NewServer(api)
	defer server.Close()

	res, err := http.Post(server.URL, "text/plain", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	res.Body.Close()
	fmt.Println(res.Status)
	// Output: 201 Created
}

// A rule for calls and one for tokens. If a call breaks one of them, neither counts it.
func ExampleRule_Of() {
	tokens := func(r *http.Request) float64 {
		n, _ := strconv.Atoi(r.Header.Get("Tokens"))
		return float64(n)
	}
	api := &outboundtest.API{Rules: []outboundtest.Rule{
		outboundtest.SlidingLog(100, time.Hour),
		outboundtest.SlidingLog(1000, time.Hour).Of("tokens", tokens),
	}}
	for _, n := range []string{"700", "400", "300"} {
		req, _ := http.NewRequest("POST", "http://api.example.com/complete", nil)
		req.Header.Set("Tokens", n)
		res, err := api.RoundTrip(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		res.Body.Close()
		fmt.Println(n, res.Status)
	}
	// Output:
	// 700 200 OK
	// 400 429 Too Many Requests
	// 300 200 OK
}

// A limiter of capacity 2 that leaks 10 per second lets three calls go, the last one 50 ms
// too early.
func ExampleHistory_Check() {
	var h outboundtest.History
	start := time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC)
	h.Add(start, 1)
	h.Add(start, 1)
	h.Add(start.Add(50*time.Millisecond), 1)

	err := h.Check(2, 10, 0)
	fmt.Println(err)

	var excess *outboundtest.Excess
	if errors.As(err, &excess) {
		fmt.Println(excess.Units, "left,", excess.Allowed, "allowed in", excess.Span())
	}
	fmt.Println(h.Check(2, 10, 0.5)) // up to 50 ms late is allowed: 10 per second * 50 ms
	// Output:
	// outboundtest: 3 units left within 50ms from 2000-01-01T12:00:00Z, 0.5 above 2.5 (2 burst, 10/s, slack 0)
	// 3 left, 2.5 allowed in 50ms
	// <nil>
}

// A day in Los Angeles ends at 8:00 UTC in winter. Two calls leave before, and two after. For
// an API whose clock may be a second off they may all be of one day.
func ExampleHistory_CheckCalendar() {
	pacific, err := time.LoadLocation("America/Los_Angeles")
	if err != nil {
		fmt.Println(err)
		return
	}
	var h outboundtest.History
	midnight := time.Date(2026, 1, 15, 8, 0, 0, 0, time.UTC)
	for _, ms := range []int{-60_000, -900, 0, 900} {
		h.Add(midnight.Add(time.Duration(ms)*time.Millisecond), 1)
	}
	fmt.Println(h.CheckCalendar(2, outboundtest.Day, pacific, 0))
	fmt.Println(h.CheckCalendar(2, outboundtest.Day, pacific, time.Second))
	// Output:
	// <nil>
	// outboundtest: 4 units left within 1m0.9s from 2026-01-15T07:59:00Z, 2 above the 2 of the day that begins at 2026-01-14T00:00:00-08:00
}

// The fullest window of a history, and how much of a quota it used.
func ExampleHistory_Worst() {
	var h outboundtest.History
	start := time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, ms := range []int{0, 900, 1100, 1300, 2500} {
		h.Add(start.Add(time.Duration(ms)*time.Millisecond), 1)
	}
	w := h.Worst(time.Second)
	fmt.Printf("%g calls from %s on\n", w.Units, w.Start.Format("15:04:05.000"))
	fmt.Printf("%.0f %% of 4 per second\n", 100*h.Use(1, 4))
	// Output:
	// 3 calls from 12:00:00.900 on
	// 45 % of 4 per second
}

// Two callers make 20 calls. In a testing/synctest bubble that would take no time.
func ExampleLoad() {
	bucket := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 1, LeakRate: 1000}))
	load := outboundtest.Load{Calls: 20, Callers: 2, Latency: time.Millisecond}
	r := load.Run(context.Background(), queue.New(bucket, queue.Config{}))
	fmt.Println(len(r.Waits), "calls went,", r.Refused, "were refused,", r.Failed, "were given up")
	fmt.Println("faster than the limit:", r.Took < 19*time.Millisecond)
	// Output:
	// 20 calls went, 0 were refused, 0 were given up
	// faster than the limit: false
}
