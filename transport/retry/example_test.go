package retry_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/retry"
)

// api stands for the network in these examples: it answers one status after the other, the
// last one for ever.
type api struct {
	retryAfter string
	statuses   []int

	mu   sync.Mutex
	sent int
}

func (a *api) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	status := a.statuses[min(a.sent, len(a.statuses)-1)]
	a.sent++
	return &http.Response{
		StatusCode: status,
		Header:     http.Header{"Retry-After": {a.retryAfter}},
		Body:       io.NopCloser(strings.NewReader(http.StatusText(status))),
		Request:    req,
	}, nil
}

// A retryablehttp client whose attempts wait in line, the first ones and the later ones.
func Example() {
	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(100)))
	network := &api{statuses: []int{429, 200}, retryAfter: "0.01"}
	client := retry.NewClient(&transport.Transport{
		Base:    network,
		Limiter: queue.New(bucket, queue.Config{MaxWait: time.Minute}),
	})

	resp, err := client.Get("https://weather.example.com/today")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, "after", network.sent, "attempts")
	// Output: 200 after 2 attempts
}

// For a program or an SDK that wants an http.Client.
func ExampleNewClient_standardClient() {
	network := &api{statuses: []int{429, 200}, retryAfter: "0.01"}
	client := retry.NewClient(&transport.Transport{Base: network}).StandardClient()

	resp, err := client.Post("https://api.example.com/orders", "text/plain", strings.NewReader("an order"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, "after", network.sent, "attempts")
	// Output: 200 after 2 attempts
}

// The client does not begin a wait that is too long. The API's answer comes back as it is, and the
// limiter's refusal of the next request is an error that says when to come back.
func ExampleConfig_MaxWait() {
	bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(100)))
	network := &api{statuses: []int{429}, retryAfter: "3600"}
	client := retry.Config{MaxWait: time.Minute}.NewClient(&transport.Transport{Base: network, Limiter: bucket})

	resp, err := client.Get("https://api.example.com/items?token=secret")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode, "again in", resp.Header.Get("Retry-After"), "seconds")

	_, err = client.Get("https://api.example.com/items?token=secret")
	if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
		fmt.Println("again in", full.RetryAfter.Round(time.Minute))
	}
	// Output:
	// 429 again in 3600 seconds
	// again in 1h0m0s
}

// RetryMax bounds refusals and failures together.
func ExampleNewClient() {
	network := &api{statuses: []int{500, 429, 500}, retryAfter: "0.01"}
	client := retry.NewClient(&transport.Transport{Base: network})
	client.RetryMax = 2
	client.RetryWaitMin = time.Millisecond // the first pause after a failure; 1 s is kinder to the API

	resp, err := client.Get("https://api.example.com/items")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode, "after", network.sent, "attempts")
	// Output: 500 after 3 attempts
}

// The client may send a POST again after a failure if that is safe: the POST has an
// Idempotency-Key, or the program says so by Safe.
func ExampleConfig_Safe() {
	for _, config := range []retry.Config{
		{},
		{Safe: func(req *http.Request) bool { return req.URL.Path == "/search" }},
	} {
		network := &api{statuses: []int{502, 200}}
		client := config.NewClient(&transport.Transport{Base: network})
		client.RetryWaitMin = time.Millisecond
		resp, err := client.Post("https://api.example.com/search", "text/plain", []byte("cats"))
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.StatusCode)
	}
	// Output:
	// 502
	// 200
}
