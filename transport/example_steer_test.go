package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/estimate"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// answering stands for the network: it answers all requests with these headers.
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

// GitHub's secondary limits answer 403. Only the text of the body tells that from a lack of
// permission.
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

// Discord names the bucket of a route in its answers, and counts each token and each channel
// apart in it. Two routes of channel 1 turn out to share a bucket.
func ExampleDiscovered() {
	ids := regexp.MustCompile("[0-9]+")
	d := &transport.Discovered{
		Route: func(req *http.Request) string {
			return req.Method + " " + ids.ReplaceAllString(req.URL.Path, "{id}")
		},
		Scope: func(req *http.Request) string {
			return req.Header.Get("Authorization") + " " + ids.FindString(req.URL.Path) // the first id is the channel's
		},
		Name: transport.HeaderName("X-RateLimit-Bucket"),
		Limiters: &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			return outbound.NewBucket(key, outbound.Limit{Capacity: 2, LeakRate: 2. / 3600})
		}},
	}
	client := &http.Client{Transport: &transport.Transport{
		Base: answering(200, "{}", "X-RateLimit-Bucket", "abcd"),
		For:  d.For, OnResponse: d.Learn, Profile: profile.Discord,
	}}
	visit(client, "https://discord.com/api/channels/1/messages")
	visit(client, "https://discord.com/api/channels/1/pins")
	visit(client, "https://discord.com/api/channels/1/messages")
	visit(client, "https://discord.com/api/channels/1/pins")
	visit(client, "https://discord.com/api/channels/1/pins/1")
	visit(client, "https://discord.com/api/channels/1/pins/1")
	visit(client, "https://discord.com/api/channels/2/pins")
	// Output:
	// 200
	// 200
	// 200
	// 200
	// 200
	// discord.com=abcd de6d9e7b36ef85c03c5055b2804b3b09 held: false  30m0s
	// 200
}

// An answer that has not changed is free.
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

// An answer tells at its end what it has cost; until then the call takes an estimate.
func ExampleAtEnd() {
	bucket := outbound.Must(outbound.NewBucket("model", outbound.Limit{Capacity: 1000, LeakRate: 0.01}))
	average := estimate.Average{Bucket: bucket, First: outbound.Cost{300}}
	known := outbound.Cost{20} // tokens of the question
	client := &http.Client{Transport: &transport.Transport{
		Base:    answering(200, `{"text": "…", "usage": 120}`),
		Limiter: bucket,
		Cost:    func(*http.Request) outbound.Cost { return average.Cost(known) },
		OnResponse: func(resp *http.Response, p *outbound.Permit) {
			transport.AtEnd(resp, 64, func(tail []byte) {
				_, usage, _ := bytes.Cut(tail, []byte(`"usage": `))
				var n float64
				if _, err := fmt.Sscan(string(usage), &n); err == nil {
					p.Settle(outbound.Cost{n})
					average.Learn(known, outbound.Cost{n})
				}
			})
		},
	}}
	visit(client, "https://api.example.com/ask")
	state, _ := bucket.State(context.Background())
	fmt.Printf("used %.0f tokens, the next is expected to use %.0f\n", state.Level, average.Cost(known)[0])
	// Output:
	// 200
	// used 120 tokens, the next is expected to use 120
}
