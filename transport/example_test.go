package transport_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// api stands for the network in these examples: it answers every request.
type api string

func (text api) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(text))), Request: req}, nil
}

// An http.Client that calls an API at most once an hour.
func ExampleTransport() {
	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerHour(1)))
	client := &http.Client{Transport: &transport.Transport{Base: api("sunny"), Limiter: bucket}}

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
		Base: api("ok"),
		For: transport.ByHost(func(host string) outbound.Limiter {
			if b := buckets[host]; b != nil {
				return b
			}
			return nil // the Transport's Limiter; if that is nil, no pace
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
		Base:    api("ok"),
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

// TooManyRequests tells clients that retry by the status when to come back.
func ExampleTooManyRequests() {
	client := &http.Client{Transport: &transport.Transport{
		Base:      api("ok"),
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
	client := &http.Client{Transport: &transport.Transport{Base: api("hello"), Limiter: bucket}}

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

// The answer itself tells at its end what it has cost: OnResponse wraps the body.
func ExampleTransport_onResponse() {
	bucket := outbound.Must(outbound.NewBucket("model", outbound.Limit{Capacity: 1000, LeakRate: 0.01}))
	client := &http.Client{Transport: &transport.Transport{
		Base:    api(`{"text": "hello", "used": 42}`),
		Limiter: bucket,
		Cost:    func(*http.Request) outbound.Cost { return outbound.Cost{900} }, // an estimate
		OnResponse: func(resp *http.Response, permit *outbound.Permit) {
			resp.Body = &metered{ReadCloser: resp.Body, permit: permit}
		},
	}}
	resp, err := client.Get("https://model.example.com/")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()

	state, err := bucket.State(context.Background())
	fmt.Printf("%.0f %v\n", state.Level, err)
	// Output: 42 <nil>
}

// metered settles a call by what its body says.
type metered struct {
	io.ReadCloser
	permit *outbound.Permit
	text   bytes.Buffer
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.text.Write(p[:n])
	return n, err
}

func (m *metered) Close() error {
	var answer struct{ Used float64 }
	if json.Unmarshal(m.text.Bytes(), &answer) == nil {
		m.permit.Settle(outbound.Cost{answer.Used})
	}
	return m.ReadCloser.Close()
}
