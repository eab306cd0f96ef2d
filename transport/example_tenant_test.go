package transport_test

import (
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
