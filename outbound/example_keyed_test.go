package outbound_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/dripfeed/dripfeed/outbound"
)

// One bucket for each tenant.
func ExampleKeyed() {
	ctx := context.Background()
	tenants := &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
		return outbound.NewBucket(tenant, outbound.PerHour(1))
	}}

	for _, tenant := range []string{"acme", "acme", "globex"} {
		permit, err := tenants.Acquire(ctx, tenant, outbound.Cost{1})
		fmt.Println(tenant, "is admitted:", !errors.Is(err, outbound.ErrThrottled))
		permit.Done()
	}
	fmt.Println(tenants.Len(), "buckets")
	// Output:
	// acme is admitted: true
	// acme is admitted: false
	// globex is admitted: true
	// 2 buckets
}

// Beyond Max all further keys share one strict bucket.
func ExampleKeyed_overflow() {
	ctx := context.Background()
	hosts := &outbound.Keyed[string]{
		New: func(host string) (outbound.Limiter, error) {
			return outbound.NewBucket(host, outbound.PerHour(1))
		},
		Max:      1,
		Overflow: outbound.Must(outbound.NewBucket("other hosts", outbound.PerHour(1))),
	}

	for _, host := range []string{"api.example.com", "a.example.org", "b.example.org"} {
		var full *outbound.ThrottledError
		permit, err := hosts.For(host).Acquire(ctx, outbound.Cost{1})
		if errors.As(err, &full) {
			fmt.Println(host, "is refused by the bucket of", full.Key)
			continue
		}
		fmt.Println(host, "is admitted")
		permit.Done()
	}
	// Output:
	// api.example.com is admitted
	// a.example.org is admitted
	// b.example.org is refused by the bucket of other hosts
}
