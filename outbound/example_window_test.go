package outbound_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Calls leave in one burst, until 5,000 have left within an hour.
func ExampleWindow() {
	bucket := outbound.Must(outbound.NewBucket("reports", outbound.Window(5_000, time.Hour).Of(0, "hour")))

	for _, calls := range []float64{1_000, 4_000, 1} {
		_, err := bucket.Acquire(context.Background(), outbound.Cost{calls})
		var full *outbound.ThrottledError
		if errors.As(err, &full) {
			fmt.Printf("%s: retry in %v\n", full.Limit, full.RetryAfter.Round(time.Minute))
			continue
		}
		fmt.Println(calls, "admitted")
	}
	// Output:
	// 1000 admitted
	// 4000 admitted
	// hour: retry in 1h0m0s
}

// YouTube admits 10,000 units a day, and the day begins at midnight in California. A search costs 100, a look at a video
// 1.
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
	// Unless the day ends meanwhile it prints:
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
			fmt.Println("the budget is spent; the next one begins in", state.EmptyIn)
		}
	}
	// Unless the month ends meanwhile it prints:
	// 400.00 spent, 600.00 left
	// 990.50 spent, 9.50 left
	// 1000.00 spent, 0.00 left
	// the budget is spent; the next one begins in 732h0m1s
}

// The calendar examples depend on the time of day, so they run at noon of 1 January 2000.
func TestExamples_OfTheCalendarPrintTheirOutput(t *testing.T) {
	page, err := os.ReadFile("example_window_test.go")
	outbound.NoError(t, err)
	stdout := os.Stdout
	defer func() { os.Stdout = stdout }()
	for name, example := range map[string]func(){"Daily": ExampleDaily, "Monthly": ExampleMonthly} {
		out, err := os.Create(filepath.Join(t.TempDir(), "output"))
		outbound.NoError(t, err)
		os.Stdout = out
		synctest.Test(t, func(*testing.T) {
			time.Sleep(12 * time.Hour)
			example()
		})
		os.Stdout = stdout
		printed, err := os.ReadFile(out.Name())
		_, said, _ := strings.Cut(string(page), "func Example"+name+"()")
		_, said, ok := strings.Cut(said, "it prints:\n")
		said, _, _ = strings.Cut(said, "}\n")
		if said = strings.ReplaceAll(said, "\t// ", ""); !ok || err != nil || out.Close() != nil || string(printed) != said {
			t.Errorf("%s prints %q, and says %q; %v", name, printed, said, err)
		}
	}
}
