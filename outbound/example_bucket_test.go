package outbound_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A bucket admits calls up to its limits, and refuses the next one with the time to retry.
func ExampleBucket() {
	bucket, err := outbound.NewBucket("reports", outbound.Window(2, time.Hour))
	if err != nil {
		panic(err)
	}
	for range 3 {
		permit, err := bucket.Acquire(context.Background(), outbound.Cost{1})
		var full *outbound.ThrottledError
		if errors.As(err, &full) {
			fmt.Printf("%s is over the limit %q, retry in %v\n", full.Key, full.Limit, full.RetryAfter.Round(time.Minute))
			continue
		}
		fmt.Println("admitted")
		permit.Done()
	}
	// Output:
	// admitted
	// admitted
	// reports is over the limit "2 in any 1h", retry in 1h0m0s
}

// "10 calls per second, 5,000 calls and 30,000 tokens per hour" is one bucket: a call is charged to all of its limits or
// to none.
func ExampleNewBucket_severalLimits() {
	const (
		calls = iota
		tokens
	)
	bucket := outbound.Must(outbound.NewBucket("assistant",
		outbound.PerSecond(10).Burst(3).Of(calls, "calls per second"),
		outbound.Window(5_000, time.Hour).Of(calls, "calls per hour"),
		outbound.Window(30_000, time.Hour).Of(tokens, "tokens"),
	))

	for _, n := range []float64{20_000, 20_000, 50_000} {
		_, err := bucket.Acquire(context.Background(), outbound.Cost{calls: 1, tokens: n})
		var full *outbound.ThrottledError
		switch {
		case errors.As(err, &full):
			fmt.Println(n, "is over the limit", full.Limit)
		case errors.Is(err, outbound.ErrTooLarge):
			fmt.Println("never:", n)
		default:
			fmt.Println("admitted", n)
		}
	}
	// Output:
	// admitted 20000
	// 20000 is over the limit tokens
	// never: 50000
}

// Fillup counts every call, and reports when the capacity is reached.
func ExampleBucket_Fillup() {
	budget := outbound.Must(outbound.NewBucket("ads",
		outbound.Limit{Capacity: 1_000, LeakRate: 1_000 / (30 * 24 * time.Hour).Seconds(), Name: "EUR per 30 days"}))

	for _, eur := range []float64{400, 500, 300} {
		s, err := budget.Fillup(context.Background(), outbound.Cost{eur})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("spent %.0f, level %.0f, full %v\n", eur, s.Level, s.Full)
	}
	ok, _ := budget.AbleToAccept(context.Background(), outbound.Cost{50})
	fmt.Println("50 more:", ok)
	// Output:
	// spent 400, level 400, full false
	// spent 500, level 900, full false
	// spent 300, level 1000, full true
	// 50 more: false
}

// The real cost of a call is often known only after it.
func ExamplePermit_Settle() {
	bucket := outbound.Must(outbound.NewBucket("assistant", outbound.PerHour(10_000).Burst(5_000)))

	permit, err := bucket.Acquire(context.Background(), outbound.Cost{4_000}) // estimated
	if err != nil {
		fmt.Println(err)
		return
	}
	permit.Settle(outbound.Cost{1_200}) // what the reply reports
	permit.Done()

	s, _ := bucket.State(context.Background())
	fmt.Printf("level %.0f, capacity for %.0f\n", s.Level, s.Remaining)
	// Output: level 1200, capacity for 3800
}

// An operator can hold a bucket, change its limits and end the hold.
func ExampleBucket_Hold() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("crm", outbound.PerSecond(10)))

	_ = bucket.Hold(ctx, time.Hour)
	_, err := bucket.Acquire(ctx, outbound.Cost{1})
	var full *outbound.ThrottledError
	fmt.Println("held:", errors.As(err, &full) && full.Held)

	_ = bucket.SetLimits(ctx, outbound.PerSecond(5))
	_ = bucket.Resume(ctx)
	s, _ := bucket.State(ctx)
	fmt.Println("held for", s.HeldFor, "and then", s.Limit)
	// Output:
	// held: true
	// held for 0s and then 5 per 1s
}

// Buckets of one key in one store are one, wherever they were made.
func ExampleNewSharedBucket() {
	store := store.NewMemory()
	for range 2 {
		bucket, err := outbound.NewSharedBucket(store, "shop:42", outbound.PerHour(1))
		if err != nil {
			fmt.Println(err)
			return
		}
		_, err = bucket.Acquire(context.Background(), outbound.Cost{1})
		fmt.Println("rate limited:", errors.Is(err, outbound.ErrThrottled))
	}
	// Output:
	// rate limited: false
	// rate limited: true
}

// An alarm at 80 % of a month's budget goes off once, however many processes reach it: a second bucket admits one call a
// month. Several processes have both buckets in Redis or PostgreSQL.
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

// A permit learns what the API replies: after a 429 the bucket holds all calls.
func ExamplePermit() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("crm", outbound.PerSecond(10)))

	permit, err := bucket.Acquire(ctx, outbound.Cost{1})
	if err != nil {
		panic(err)
	}
	permit.Refused(time.Minute) // the API has answered 429, Retry-After: 60
	permit.Done()

	_, err = bucket.Acquire(ctx, outbound.Cost{1})
	var full *outbound.ThrottledError
	fmt.Println(errors.As(err, &full) && full.Held, full.RetryAfter.Round(time.Second))
	// Output: true 1m0s
}
