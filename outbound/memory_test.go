package outbound_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

func TestMemoryPassesTheExam(t *testing.T) {
	for sentence, check := range outboundtest.StoreCases() {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { check(t, leak.NewMemory()) })
		})
	}
}

// The exam as other stores take it: by the real clock.
func TestMemoryPassesTheExamInRealTime(t *testing.T) {
	outboundtest.TestStore(t, func(*testing.T) leak.Store { return leak.NewMemory() })
}

func TestMemoryForgetsIdleKeysOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		use := func(key string, l outbound.Limit) {
			b := outbound.Must(outbound.NewSharedBucket(m, key, l))
			if _, err := b.Acquire(context.Background(), outbound.Cost{1}); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
		}
		use("hourly", outbound.Limit{Capacity: 1, LeakRate: 1. / 7200})
		for i := range 5000 {
			use(fmt.Sprint("short", i), outbound.Limit{Capacity: 1, LeakRate: 1})
			time.Sleep(time.Second)
		}
		if n := m.Len(); n > 500 {
			t.Errorf("%d keys kept of 5000 that have been idle, each for long", n)
		}
		b := outbound.Must(outbound.NewSharedBucket(m, "hourly", outbound.Limit{Capacity: 1, LeakRate: 1. / 7200}))
		if _, err := b.Acquire(context.Background(), outbound.Cost{1}); err == nil {
			t.Error("a key with debt was forgotten")
		}
	})
}
