package outboundtest_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// A refusal of Stripe has its reason, and no Retry-After.
func TestStripe_HasOnlyAReason(t *testing.T) {
	path := func(r *http.Request) string { return r.URL.Path }
	for reason, rule := range map[string]Rule{
		"global-rate":          SlidingLog(1, time.Second),
		"endpoint-rate":        SlidingLog(1, time.Second).By(path),
		"global-concurrency":   InFlight(1),
		"endpoint-concurrency": InFlight(1).By(path),
		"resource-specific":    SlidingLog(1, time.Second).Of("resource", nil).By(path),
	} {
		synctest.Test(t, func(t *testing.T) {
			api := Stripe(rule)
			api.Latency = time.Second / 2
			var wg sync.WaitGroup
			wg.Go(func() { tell(t, api, "POST", "/v1/charges", 0).want(t, 200, "Stripe-Rate-Limited-Reason", "body: {}") })
			synctest.Wait()
			tell(t, api, "POST", "/v1/charges", 0).want(t, 429, "Stripe-Rate-Limited-Reason: "+reason, "Stripe-Should-Retry", "Retry-After",
				`body: "code":"rate_limit"`)
			wg.Wait()
		})
	}
}

// A locked object refuses its own calls only, as lock_timeout.
func TestStripe_LocksAreNoLimitOfTheAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		object := func(r *http.Request) string { return r.URL.Path }
		api := Stripe(InFlight(1).Of("lock", nil).By(object))
		api.Latency = time.Second
		var wg sync.WaitGroup
		for _, path := range []string{"/v1/customers/a", "/v1/customers/b"} {
			wg.Go(func() { tell(t, api, "POST", path, 0).want(t, 200) })
		}
		synctest.Wait()
		tell(t, api, "POST", "/v1/customers/a", 0).want(t, 429, "Stripe-Rate-Limited-Reason", "Stripe-Should-Retry: true", "Retry-After", `body: "lock_timeout"`)
		wg.Wait()
		tell(t, api, "POST", "/v1/customers/a", 0).want(t, 200)
	})
}

// Stripe limits each endpoint and the account.
func TestStripe_LimitsEachEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := Stripe()
		for _, endpoint := range []string{"charges", "refunds", "customers", "payouts"} {
			for range 25 {
				tell(t, api, "POST", "/v1/"+endpoint, 0).want(t, 200)
			}
		}
		tell(t, api, "GET", "/v1/charges/ch_1", 0).want(t, 429, "Stripe-Rate-Limited-Reason: global-rate")
		time.Sleep(time.Second)
		for i := range 25 {
			tell(t, api, "GET", fmt.Sprintf("/v1/charges/ch_%d", i), 0).want(t, 200)
		}
		tell(t, api, "GET", "/v1/charges/ch_3MmL", 0).want(t, 429, "Stripe-Rate-Limited-Reason: endpoint-rate")
		tell(t, api, "POST", "/v1/charges/ch_1", 0).want(t, 200) // another operation
		tell(t, api, "GET", "/v1/charges/search", 0).want(t, 200)
	})
}
