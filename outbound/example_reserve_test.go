package outbound_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A program reserves a time for a call, does other work until then, and makes the call.
func ExampleBucket_Reserve() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(10)))
	for range 3 {
		r, err := bucket.Reserve(ctx, outbound.Cost{1}, time.Second)
		if err != nil {
			fmt.Println("refused:", err)
			return
		}
		defer r.Cancel() // has no effect once the call has its permit
		time.Sleep(time.Until(r.At()))
		permit, err := r.Permit(ctx)
		for errors.Is(err, outbound.ErrThrottled) { // a 429 has moved the reservation, or the program is late
			time.Sleep(time.Until(r.At()))
			permit, err = r.Permit(ctx)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("call the API")
		permit.Done()
	}
	// Output:
	// call the API
	// call the API
	// call the API
}
