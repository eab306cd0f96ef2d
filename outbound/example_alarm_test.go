package outbound_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// An alarm at 80 % of a month's budget goes off once, however many processes meet the mark: a second
// bucket admits one call a month. A fleet has both buckets in its Redis or PostgreSQL.
func ExampleBucket_Fillup_alarm() {
	ctx := context.Background()
	store := store.NewMemory()
	spent := outbound.Must(outbound.NewSharedBucket(store, "spent", outbound.Monthly(80, time.UTC)))
	alarm := outbound.Must(outbound.NewSharedBucket(store, "alarm", outbound.Monthly(1, time.UTC)))

	for call := range 100 {
		s, err := spent.Fillup(ctx, outbound.Cost{1})
		if err != nil || !s.Full {
			continue
		}
		if _, err := alarm.Acquire(ctx, outbound.Cost{1}); err == nil {
			fmt.Println("80 % of the budget are spent, at call", call+1)
		}
	}
	// Output: 80 % of the budget are spent, at call 80
}
