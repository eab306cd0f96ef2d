package outbound_test

import (
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
)

// The cell of a bucket of one limit knows nothing of calls at once.
func TestCallsAtOnceThatAreSetBesideTheSameLimitCount(t *testing.T) {
	leaky := outbound.Limit{Capacity: 100, LeakRate: 1}
	b := outbound.Must(outbound.NewBucket("key", leaky))
	if err := b.SetLimits(background, leaky, outbound.InFlight(2)); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if _, err := b.Acquire(background, outbound.Cost{1}); (err == nil) != (i < 2) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if err := b.SetLimits(background, leaky); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Acquire(background, outbound.Cost{1}); err != nil {
		t.Errorf("without a limit of calls at once: %v", err)
	}
}

func TestABucketWhoseCallsAtOnceWereSetIsNotIdle(t *testing.T) {
	for name, limits := range map[string][]outbound.Limit{"alone": nil, "beside a leaky limit": {outbound.PerSecond(10)}} {
		b := outbound.Must(outbound.NewBucket("key", append(limits, outbound.InFlight(5))...))
		if !b.Idle() {
			t.Errorf("%s: a new bucket is not idle", name)
		}
		for _, set := range []struct {
			most int
			idle bool
		}{{5, true}, {2, false}} {
			if err := b.SetLimits(background, append(limits, outbound.InFlight(set.most))...); err != nil {
				t.Fatal(err)
			}
			if b.Idle() != set.idle {
				t.Errorf("%s: after InFlight(%v) was set Idle is %v", name, set.most, b.Idle())
			}
		}
	}
}
