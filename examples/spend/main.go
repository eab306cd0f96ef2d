// Command spend keeps a budget of money with a bucket, whose units are euros:
//
//	go run ./examples/spend
//
// The bucket holds 1000 EUR and leaks 1000 EUR in 30 days: 33.33 EUR come back each day,
// instead of all on the first of the month. Acquire is the gate, for purchases that can still
// be refused; Fillup is the meter, for money that has been spent already; and AbleToAccept
// asks before the work that leads to a purchase. Look at what is left after each line, at
// when a refused purchase may come back, and at the alert at 80 %.
//
// After a pause 1000 EUR may go out at once, and what leaks goes out on top of them.
// Where the sum of any 30 days has to stay below 1000, the limit is
// outbound.Per(1000, 30*24*time.Hour).Burst(b), with b the largest single purchase.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const month = 30 * 24 * time.Hour

// shows is what the program shows, in a line.
const shows = "A bucket keeps a budget of 1000 EUR per 30 days."

func main() {
	flag.Usage = func() { fmt.Fprintf(flag.CommandLine.Output(), "%s\n\n\tgo run ./examples/spend\n", shows) }
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "spend:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	limit := outbound.Limit{Capacity: 1000, LeakRate: 1000 / month.Seconds(), Name: "EUR per 30 days"}
	bucket, err := outbound.NewBucket("marketing", limit)
	if err != nil {
		return err
	}
	b := &budget{bucket: bucket, out: out}
	b.printf("%s\n%.2f EUR of it come back each day.\n\n", shows, limit.LeakRate*24*3600)
	return errors.Join(
		b.buy(ctx, "domain names", 30, 30),
		b.buy(ctx, "trade fair", 990, 990),
		b.buy(ctx, "ads, by click", 200, 140),
		b.record(ctx, "servers", 680),
		b.ask(ctx, "hotel", 200),
		b.record(ctx, "emails", 240),
		b.buy(ctx, "stickers", 5, 5),
		b.buy(ctx, "a car", 20_000, 20_000),
	)
}

// budget is a bucket of euros.
type budget struct {
	bucket  *outbound.Bucket
	out     io.Writer
	alerted bool
}

// buy is the gate: it reserves the highest possible price, and settles the real one.
func (b *budget) buy(ctx context.Context, what string, most, price float64) error {
	permit, err := b.bucket.Acquire(ctx, outbound.Cost{most})
	if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
		b.printf("%8.2f EUR  %-13s refused: room in %v\n", most, what, full.RetryAfter.Round(time.Minute))
		return nil
	}
	if errors.Is(err, outbound.ErrTooLarge) { // it would never fit
		b.printf("%8.2f EUR  %-13s refused: above the whole budget\n", most, what)
		return nil
	}
	if err != nil {
		return err
	}
	defer permit.Done()
	permit.Settle(outbound.Cost{price})
	state, err := b.bucket.State(ctx)
	if err != nil {
		return err
	}
	b.printf("%8.2f EUR  %-13s bought for %.2f, %.2f left\n", most, what, price, state.Remaining)
	b.watch(state)
	return nil
}

// record is the meter: the money has been spent, and nobody asked before.
func (b *budget) record(ctx context.Context, what string, price float64) error {
	state, err := b.bucket.Fillup(ctx, outbound.Cost{price})
	if err != nil {
		return err
	}
	b.printf("%8.2f EUR  %-13s has been spent, %.2f left\n", price, what, state.Remaining)
	b.watch(state)
	return nil
}

// ask tells whether a purchase would be accepted now, and reserves nothing.
func (b *budget) ask(ctx context.Context, what string, price float64) error {
	ok, err := b.bucket.AbleToAccept(ctx, outbound.Cost{price})
	if err != nil {
		return err
	}
	answer := "would not fit now"
	if ok {
		answer = "would fit now"
	}
	b.printf("%8.2f EUR  %-13s %s\n", price, what, answer)
	return nil
}

// watch raises an alert when four fifths are spent, and not again until it has been below.
func (b *budget) watch(state outbound.State) {
	spent := state.Level / state.Limit.Capacity
	if spent >= 0.8 && !b.alerted {
		b.printf("   ALERT: %.0f %% of the budget is spent\n", 100*spent)
	}
	b.alerted = spent >= 0.8
	if state.Full {
		b.printf("   FULL: all is back in %.0f days if nothing more is spent\n", state.EmptyIn.Hours()/24)
	}
}

// printf writes a line. If that fails, there is no place to say so.
func (b *budget) printf(format string, args ...any) { fmt.Fprintf(b.out, format, args...) }
