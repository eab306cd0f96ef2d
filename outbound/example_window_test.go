package outbound_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// As fast as ten calls per second, until 5 000 have gone within an hour.
func ExampleWindow() {
	bucket := outbound.Must(outbound.NewBucket("github", outbound.PerSecond(10), outbound.Window(5_000, time.Hour)))

	// 4 999 calls of the last hour, for this example.
	if _, err := bucket.Fillup(context.Background(), outbound.Cost{4_999}); err != nil {
		panic(err)
	}
	time.Sleep(110 * time.Millisecond)
	for range 2 {
		_, err := bucket.Acquire(context.Background(), outbound.Cost{1})
		var full *outbound.ThrottledError
		if errors.As(err, &full) {
			fmt.Printf("%s: come back in %v\n", full.Limit, full.RetryAfter.Round(time.Minute))
			continue
		}
		fmt.Println("call the API")
	}
	// Output:
	// call the API
	// 5000 per 1h: come back in 1h0m0s
}

// YouTube gives 10 000 units a day, and the day begins at midnight in California. A search
// costs 100, a look at a video 1.
func ExampleDaily() {
	pacific, err := time.LoadLocation("America/Los_Angeles")
	if err != nil {
		panic(err)
	}
	bucket := outbound.Must(outbound.NewBucket("youtube", outbound.Daily(10_000, pacific)))

	for _, units := range []float64{100, 1, 9_899, 1} {
		_, err := bucket.Acquire(context.Background(), outbound.Cost{units})
		var full *outbound.ThrottledError
		if errors.As(err, &full) {
			fmt.Println("no more today:", full.RetryAfter > 0)
			continue
		}
		state, err := bucket.State(context.Background())
		fmt.Println(state.Remaining, "units are left,", err)
	}
	// Output:
	// 9900 units are left, <nil>
	// 9899 units are left, <nil>
	// 0 units are left, <nil>
	// no more today: true
}

// What was spent this month, and an alert when all of the budget is.
func ExampleMonthly() {
	budget := outbound.Must(outbound.NewBucket("ads", outbound.Monthly(1_000, time.UTC).Of(0, "EUR per month")))

	for _, euros := range []float64{400, 590.50, 25} {
		state, err := budget.Fillup(context.Background(), outbound.Cost{euros})
		if err != nil {
			panic(err)
		}
		fmt.Printf("%.2f spent, %.2f left\n", state.Level, state.Remaining)
		if state.Full {
			fmt.Println("the budget is spent; the next one begins within a month:", state.EmptyIn <= 31*24*time.Hour+time.Second)
		}
	}
	// Output:
	// 400.00 spent, 600.00 left
	// 990.50 spent, 9.50 left
	// 1000.00 spent, 0.00 left
	// the budget is spent; the next one begins within a month: true
}
