package profile_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// An API that hides its refusals: it answers 403, tells what remains of a minute in headers
// of its own, and the reason and the wait in the body.
func ExampleProfile() {
	weather := &profile.Profile{
		Name: "weather",
		Fields: []profile.Field{
			{Header: "X-Minute-Left", Is: profile.IsRemaining, Policy: "minute", Window: time.Minute},
			{Header: "X-Minute-Allowed", Is: profile.IsLimit, Policy: "minute", Window: time.Minute},
		},
		Bodies: []profile.Body{{Status: http.StatusForbidden}},
		Judge: func(r *profile.Response, s *profile.Signal) {
			if r.JSON("error/code") != "slow_down" {
				return // forbidden for other reasons
			}
			s.Throttled, s.Reason = true, profile.Rate
			if n, ok := profile.Number(r.JSON("error/seconds")); ok && n < 3600 {
				s.RetryAfter, s.HasRetryAfter = time.Duration(n*float64(time.Second)), true
			}
		},
	}

	resp := &http.Response{
		StatusCode:    http.StatusForbidden,
		Header:        http.Header{},
		Body:          io.NopCloser(strings.NewReader(`{"error":{"code":"slow_down","seconds":7.5}}`)),
		ContentLength: -1,
	}
	resp.Header.Set("Content-Type", "application/json")
	resp.Header.Set("X-Minute-Left", "3")
	resp.Header.Set("X-Minute-Allowed", "60")

	signal := weather.Read(resp, time.Now())
	fmt.Println(signal.Throttled, signal.Reason, signal.Wait)
	for _, p := range signal.Policies() {
		fmt.Println(p.Name, p.Remaining, "of", p.Limit, "in", p.Window)
	}
	body, err := io.ReadAll(resp.Body) // the body is there as before
	fmt.Println(len(body), err)
	// Output:
	// true rate 7.5s
	// minute 3 of 60 in 1m0s
	// 44 <nil>
}

// A success that used up the last of a window: the next call has to wait.
func ExampleProfile_Read() {
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}}
	resp.Header.Set("RateLimit", `"default";r=0;t=30`)
	resp.Header.Set("RateLimit-Policy", `"default";q=100;w=60`)

	signal := profile.Generic.Read(resp, time.Now())
	fmt.Println(signal.Throttled, signal.Wait)
	fmt.Println(signal.Binding().Name, signal.Binding().Limit, signal.Binding().Window)
	// Output:
	// false 30s
	// default 100 1m0s
}
