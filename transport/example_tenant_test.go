package transport_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// Tenants bring tokens of their own, and each token has a quota at GitHub. The key of a
// tenant's limiter is a hash: no token gets into a log, an error or a store.
func ExampleByHeader() {
	tenants := &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
		return outbound.NewBucket(key, outbound.PerMinute(900).Burst(30))
	}}
	gitHub := outboundtest.GitHub(outboundtest.FirstCallWindow(1, time.Hour).Of("core", nil).
		By(func(req *http.Request) string { return req.Header.Get("Authorization") }))
	client := &http.Client{Transport: &transport.Transport{
		Base:    gitHub, // nil: the network
		For:     transport.ByHeader("Authorization", tenants.For),
		Profile: profile.GitHub,
	}}

	for _, token := range []string{"ann's token", "ann's token", "bob's token"} {
		req, err := http.NewRequest(http.MethodGet, "https://api.github.com/user", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
			fmt.Printf("%s: none is left, and none comes for %v\n", token, full.RetryAfter.Round(time.Hour))
			fmt.Println("its key has the token:", strings.Contains(full.Key, token))
			continue
		} else if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Printf("%s: %d\n", token, resp.StatusCode)
	}
	// Output:
	// ann's token: 200
	// ann's token: none is left, and none comes for 1h0m0s
	// its key has the token: false
	// bob's token: 200
}

// Each tenant has a limit, and all of them have one in total. The API refuses one of ann's requests. That holds ann,
// whose limiter is outside, and not the total.
func ExampleTransport_tenantsWithATotal() {
	type tenant struct{}
	tenants := &outbound.Keyed[string]{New: func(name string) (outbound.Limiter, error) {
		return outbound.NewBucket(name, outbound.PerMinute(60).Burst(10))
	}}
	total := outbound.Must(outbound.NewBucket("total", outbound.PerMinute(600).Burst(100)))
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(1, time.Minute).
		By(func(req *http.Request) string { return req.URL.Path })}}
	client := &http.Client{Transport: &transport.Transport{
		For:  func(req *http.Request) outbound.Limiter { return tenants.For(req.Context().Value(tenant{}).(string)) },
		Base: &transport.Transport{Limiter: total, Base: api}, // without api: the network
	}}

	for _, name := range []string{"ann", "ann", "ann", "bob"} {
		ctx := context.WithValue(context.Background(), tenant{}, name)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/"+name, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp, err := client.Do(req)
		if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
			fmt.Printf("%s: on hold, and nothing is sent\n", full.Key)
			continue
		} else if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Printf("%s: %d\n", name, resp.StatusCode)
	}
	// Output:
	// ann: 200
	// ann: 429
	// ann: on hold, and nothing is sent
	// bob: 200
}
