package outbound_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Each tenant has 5 calls a second, and all of them 50. The API refuses a call of ann: that holds her
// calls and no other's. With 40 tenants that always have calls waiting, 2,971 of 3,000 calls leave in
// a minute, and 74 or 75 of each tenant.
func ExampleWithin() {
	total := outbound.Must(outbound.NewBucket("total", outbound.PerSecond(50)))
	tenants := &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
		own, err := outbound.NewBucket(tenant, outbound.PerMinute(300).Burst(10), outbound.InFlight(1))
		wait := queue.Config{MaxWait: time.Second}
		return outbound.Within(queue.New(own, wait), queue.New(total, wait)), err
	}}
	for _, tenant := range []string{"ann", "ann", "bob"} {
		err := outbound.Do(context.Background(), tenants.For(tenant), outbound.Cost{1}, func(ctx context.Context) error {
			if tenant == "ann" { // the API answers 429
				outbound.PermitFrom(ctx).Refused(time.Minute)
			}
			return nil
		})
		fmt.Println(tenant, "was admitted:", err == nil)
	}
	// Output:
	// ann was admitted: true
	// ann was admitted: false
	// bob was admitted: true
}
