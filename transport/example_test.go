package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// answering stands for the network: it replies to all requests with this response.
func answering(status int, body string, header ...string) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		h := http.Header{"Content-Type": {"application/json"}}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req}, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func visit(client *http.Client, url string) {
	resp, err := client.Get(url)
	var full *outbound.ThrottledError
	if errors.As(err, &full) {
		fmt.Println(full.Key, "held:", full.Held, full.Reason, full.RetryAfter.Round(time.Second))
		return
	} else if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
}

// An http.Client that calls an API at most once an hour.
func ExampleTransport() {
	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerHour(1)))
	client := &http.Client{Transport: &transport.Transport{Base: answering(200, "sunny"), Limiter: bucket}}

	for range 2 {
		resp, err := client.Get("https://weather.example.com/today")
		var full *outbound.ThrottledError
		if errors.As(err, &full) {
			fmt.Printf("%s is over the limit for %.0f minutes\n", full.Key, full.RetryAfter.Minutes())
			continue
		} else if err != nil {
			fmt.Println(err)
			continue
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(string(text))
	}
	// Output:
	// sunny
	// weather is over the limit for 60 minutes
}

// Each host has a bucket of its own.
func ExampleByHost() {
	buckets := map[string]*outbound.Bucket{
		"a.example.com": outbound.Must(outbound.NewBucket("a", outbound.PerHour(1))),
		"b.example.com": outbound.Must(outbound.NewBucket("b", outbound.PerHour(1))),
	}
	client := &http.Client{Transport: &transport.Transport{
		Base: answering(200, "ok"),
		For: transport.ByHost(func(host string) outbound.Limiter {
			if b := buckets[host]; b != nil {
				return b
			}
			return nil // the Transport's Limiter admits; if that is nil, every request is
		}),
	}}
	for _, url := range []string{"https://a.example.com/", "https://A.example.com:443/", "https://b.example.com/", "https://c.example.com/"} {
		resp, err := client.Get(url)
		if err == nil {
			resp.Body.Close()
		}
		fmt.Println(url, err == nil)
	}
	// Output:
	// https://a.example.com/ true
	// https://A.example.com:443/ false
	// https://b.example.com/ true
	// https://c.example.com/ true
}

// The API limits searches more strictly than the rest.
func ExampleByRoute() {
	byRoute, err := transport.ByRoute(map[string]outbound.Limiter{
		"GET api.example.com/search/": outbound.Must(outbound.NewBucket("search", outbound.PerHour(1))),
		"GET api.example.com/health":  outbound.Unlimited{},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: &transport.Transport{
		Base:    answering(200, "ok"),
		Limiter: outbound.Must(outbound.NewBucket("api", outbound.PerHour(100).Burst(2))),
		For:     byRoute,
	}}
	for _, path := range []string{"/search/cats", "/search/dogs", "/users/7", "/health", "/health"} {
		resp, err := client.Get("https://api.example.com" + path)
		if err == nil {
			resp.Body.Close()
		}
		fmt.Println(path, err == nil)
	}
	// Output:
	// /search/cats true
	// /search/dogs false
	// /users/7 true
	// /health true
	// /health true
}

// TooManyRequests reports to clients that retry by the status when to retry.
func ExampleTooManyRequests() {
	client := &http.Client{Transport: &transport.Transport{
		Base:      answering(200, "ok"),
		Limiter:   outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 1, LeakRate: 0.01})),
		OnRefusal: transport.TooManyRequests,
	}}
	for range 2 {
		resp, err := client.Get("https://api.example.com/")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Printf("%d %q\n", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	// Output:
	// 200 ""
	// 429 "100"
}

// The units of an API that counts tokens.
const (
	calls = iota
	tokens
)

// A library hides its requests. The program settles a call when the library has returned its cost.
func ExampleWithCost() {
	bucket := outbound.Must(outbound.NewBucket("model", outbound.PerMinute(500),
		outbound.Window(1_000, time.Minute).Of(tokens, "tokens")))
	client := &http.Client{Transport: &transport.Transport{Base: answering(200, "hello"), Limiter: bucket}}

	ctx, permit := transport.WithCost(context.Background(), outbound.Cost{calls: 1, tokens: 900}) // an estimate
	used := ask(ctx, client)
	permit.Settle(outbound.Cost{calls: 1, tokens: used})

	ok, err := bucket.AbleToAccept(ctx, outbound.Cost{outbound.Free, 900})
	fmt.Println(used, ok, err)
	// Output: 42 true <nil>
}

// ask is such a library.
func ask(ctx context.Context, client *http.Client) (tokens float64) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://model.example.com/", nil)
	if err != nil {
		return 0
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return 42
}

// GitHub refuses by a secondary limit with 403. Only the text of the body distinguishes that from a
// lack of permission.
func ExampleTransport_profile() {
	client := &http.Client{Transport: &transport.Transport{
		Base:    answering(403, `{"message": "You have exceeded a secondary rate limit."}`, "Retry-After", "60"),
		Limiter: outbound.Must(outbound.NewBucket("github", outbound.PerSecond(10))),
		Profile: profile.GitHub,
		OnSignal: func(_ *http.Response, s *profile.Signal) {
			fmt.Println("the API says:", s.Reason, s.Scope, s.Wait)
		},
	}}
	visit(client, "https://api.github.com/user")
	visit(client, "https://api.github.com/user")
	// Output:
	// the API says: rate secondary 1m0s
	// 403
	// github held: true rate 1m0s
}

// A response that has not changed is free.
func ExampleTransport_used() {
	bucket := outbound.Must(outbound.NewBucket("github", outbound.Limit{Capacity: 10, LeakRate: 0.001}))
	client := &http.Client{Transport: &transport.Transport{
		Base:    answering(304, ""),
		Limiter: bucket,
		Used: func(resp *http.Response) (outbound.Cost, bool) {
			return outbound.Cost{}, resp.StatusCode == http.StatusNotModified
		},
	}}
	visit(client, "https://api.github.com/user")
	state, _ := bucket.State(context.Background())
	fmt.Printf("%.0f remain\n", state.Remaining)
	// Output:
	// 304
	// 10 remain
}
