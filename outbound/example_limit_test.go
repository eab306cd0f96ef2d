package outbound_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Limits come from a file of configuration, as text or as objects.
func ExampleParseLimit() {
	var config struct{ Limits []outbound.Limit }
	err := json.Unmarshal([]byte(`{"limits": [
		"10 per 1s",
		"5000 in any 1h",
		"10000 per day Europe/Berlin",
		{"n": 30000, "per": "1m", "burst": 3000, "unit": 1, "name": "tokens"}
	]}`), &config)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, l := range config.Limits {
		fmt.Println(l)
	}
	_, err = outbound.ParseLimit("10 per day")
	fmt.Println(err)
	// Output:
	// 10 per 1s
	// 5000 in any 1h
	// 10000 per day Europe/Berlin
	// tokens (unit 1): 30000 per 1m, 3000 burst
	// outbound: invalid limit: "10 per day": a day needs its time zone, as in "10000 per day Europe/Berlin"
}

// It is unknown how many calls in flight an API takes. A refusal halves the limit. As many successes as
// the limit admits raise it by one.
func ExampleLimit_Adaptive() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("api", outbound.InFlight(8).Adaptive()))
	calls := make([]outbound.Permit, 8)
	for i := range calls {
		calls[i], _ = bucket.Acquire(ctx, outbound.Cost{1})
	}
	for i := range calls { // the API refuses the last four
		if i >= 4 {
			calls[i].Refused(time.Minute)
		}
		calls[i].Done()
	}
	e, _ := bucket.Explain(ctx, outbound.Cost{1})
	fmt.Println(e)
	// Output:
	// "api": would wait 1m for the hold to end
	//   held for 1m (rate)
	//   the API has refused the latest call
	//   slowed to 90 % after refusals
	//   limit "8 in flight, adaptive": 0 of 4 calls in progress
}

// A limit has one of five kinds. String writes what ParseLimit reads.
func ExampleLimit() {
	for _, limit := range []outbound.Limit{
		outbound.PerSecond(10),                             // spaced evenly
		outbound.PerMinute(600).Burst(20),                  // spaced evenly after a burst
		outbound.Window(5_000, time.Hour),                  // in any hour
		outbound.Daily(10_000, time.UTC).Of(1, "tokens"),   // in a day, of the second number of a Cost
		outbound.InFlight(5),                               // at the same time
		{Capacity: 40, LeakRate: 2, Name: "shop's bucket"}, // as the API publishes
	} {
		fmt.Println(limit)
	}
	// Output:
	// 10 per 1s
	// 600 per 1m, 20 burst
	// 5000 in any 1h
	// tokens (unit 1): 10000 per day UTC
	// 5 in flight
	// shop's bucket: 40 burst, 2/s
}

// A ticker of exactly 100 ms that does not wait. Per spaces calls by 110 ms, so every second tick comes too early.
func TestPer_TickerOnTheBeat(t *testing.T) {
	for want, l := range map[int]outbound.Limit{
		500:  outbound.PerSecond(10),
		910:  outbound.Window(10, time.Second),
		1000: {Capacity: 1, LeakRate: 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			bucket, admitted := outbound.Must(outbound.NewBucket("api", l)), 0
			for tick := range 1000 {
				if tick > 0 {
					time.Sleep(100 * time.Millisecond)
				}
				if _, err := bucket.Acquire(t.Context(), outbound.Cost{1}); err == nil {
					admitted++
				}
			}
			outbound.ErrorIf(t, admitted < want-5 || admitted > want+5,
				"%v admits %d of 1,000 ticks, want some %d", l, admitted, want)
		})
	}
}

// A restarted program has a fresh capacity. It begins full with a Fillup of that.
func ExampleBucket_Fillup_restart() {
	bucket := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 100, LeakRate: 1}))
	_, _ = bucket.Fillup(context.Background(), outbound.Cost{100})

	_, err := bucket.Acquire(context.Background(), outbound.Cost{100})
	fmt.Println(errors.Is(err, outbound.ErrThrottled))
	// Output: true
}
