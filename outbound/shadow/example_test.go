package shadow_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/shadow"
)

// Calls leave as before, and the program learns what a limit of two an hour would do with them.
func ExampleNew() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("reports", outbound.Limit{Capacity: 2, LeakRate: 2.0 / 3600}))
	limiter := shadow.New(bucket, time.Hour, func(_ context.Context, v shadow.Verdict) {
		switch {
		case v.Err != nil:
			fmt.Println("would be refused")
		case v.Wait > 0:
			fmt.Println("would wait", v.Wait.Round(time.Minute))
		default:
			fmt.Println("would leave now")
		}
	})

	for range 5 {
		permit, err := limiter.Acquire(ctx, outbound.Cost{1})
		if err != nil {
			return // a shadow never refuses
		}
		permit.Done()
	}
	// Output:
	// would leave now
	// would leave now
	// would wait 30m0s
	// would wait 1h0m0s
	// would be refused
}
