package outbound_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Calls go as they did before, and the program hears what a limit of two an hour would do with them.
func ExampleShadow() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("reports", outbound.Limit{Capacity: 2, LeakRate: 2.0 / 3600}))
	config := outbound.ShadowConfig{MaxWait: time.Hour, Independent: true}
	limiter := outbound.Shadow(bucket, config, func(_ context.Context, v outbound.Verdict) {
		switch {
		case v.Err != nil:
			fmt.Println("would be refused")
		case v.Wait > 0:
			fmt.Println("would wait", v.Wait.Round(time.Minute))
		default:
			fmt.Println("would go now")
		}
		if v.Finding != outbound.FindingNone {
			fmt.Println("the limit is", v.Finding)
		}
	})

	for range 5 {
		permit, err := limiter.Acquire(ctx, outbound.Cost{1})
		if err != nil {
			return // a Shadow never refuses
		}
		permit.Done() // what the API has answered goes before: see Permit.Refused
	}
	// Output:
	// would go now
	// would go now
	// would wait 30m0s
	// would wait 1h0m0s
	// would be refused
	// the limit is too low
}
