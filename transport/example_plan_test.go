package transport_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// A tenant's plan says how fast his calls may go. For finds the tenant in the request's
// context, where the program has put him, and not by his token.
func ExampleTransport_plan() {
	type tenant struct{}                                  // the key of the context
	plans := map[string]float64{"acme": 3, "smallbiz": 1} // calls an hour
	tenants := &outbound.Keyed[string]{New: func(name string) (outbound.Limiter, error) {
		n, ok := plans[name]
		if !ok {
			return nil, fmt.Errorf("no tenant %q", name)
		}
		return outbound.NewBucket(name, outbound.PerHour(n))
	}}
	client := &http.Client{Transport: &transport.Transport{
		Base: answering(200, "{}"),
		For: func(req *http.Request) outbound.Limiter {
			name, _ := req.Context().Value(tenant{}).(string)
			return tenants.For(name)
		},
	}}
	for _, name := range []string{"acme", "acme", "smallbiz", "smallbiz", ""} {
		ctx := context.WithValue(context.Background(), tenant{}, name)
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.example.com/items", nil)
		req.Header.Set("Authorization", "token of "+name)
		resp, err := client.Do(req)
		var full *outbound.ThrottledError
		if errors.As(err, &full) {
			fmt.Printf("%s is over the limit for %.0f minutes\n", full.Key, full.RetryAfter.Minutes())
		} else if err != nil {
			fmt.Println(err)
		} else {
			resp.Body.Close()
			fmt.Println(name, resp.StatusCode)
		}
	}
	// Output:
	// acme 200
	// acme is over the limit for 20 minutes
	// smallbiz 200
	// smallbiz is over the limit for 60 minutes
	// Get "https://api.example.com/items": no tenant ""
}
