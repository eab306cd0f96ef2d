// Command spend keeps a budget of money with a bucket, whose units are euros:
//
//	go run ./examples/spend
//
// The limit is 1000 EUR in each month, by the clocks of Berlin. One day may use all of it, and the
// next month has the whole budget again. Acquire enforces the limit for purchases that can still be
// refused. Fillup counts money that has been spent already. AbleToAccept looks before the work that
// leads to a purchase. Look at the rest after each line, at the day when a refused purchase fits,
// and at the alert at 80 %. The last purchase exceeds the budget of any month, which is another
// error, without a time to retry.
//
// The bucket here is in this process's memory, and forgets what was spent when the program ends. A
// budget that outlasts the program, or that several processes share, is in a store:
// outbound.NewSharedBucket with the same limit.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	_ "time/tzdata" // for machines that know no time zones

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
)

const eurosPerMonth = 1000

const shows = "A bucket keeps a budget of 1000 EUR a month."

var example = cli.Example{Name: "spend", Usage: shows + "\n\n\tgo run ./examples/spend", New: cli.NoFlags(run)}

func main() { example.Main() }

func run(ctx context.Context, out io.Writer) error {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		return err
	}
	bucket, err := outbound.NewBucket("marketing", outbound.Monthly(eurosPerMonth, zone))
	if err != nil {
		return err
	}
	b := &budget{bucket: bucket, zone: zone, out: out}
	b.printf("%s\nToday is %s in Berlin.\n\n", shows, b.day(0))
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
	zone    *time.Location
	out     io.Writer
	alerted bool
}

// buy reserves the highest possible price, and settles the real one.
func (b *budget) buy(ctx context.Context, what string, most, price float64) error {
	permit, err := b.bucket.Acquire(ctx, outbound.Cost{most})
	if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
		b.printf("%8.2f EUR  %-13s refused until %s\n", most, what, b.day(full.RetryAfter))
		return nil
	}
	if errors.Is(err, outbound.ErrTooLarge) {
		b.printf("%8.2f EUR  %-13s refused: no month has that much\n", most, what)
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

// record counts money that has been spent already.
func (b *budget) record(ctx context.Context, what string, price float64) error {
	state, err := b.bucket.Fillup(ctx, outbound.Cost{price})
	if err != nil {
		return err
	}
	b.printf("%8.2f EUR  %-13s has been spent, %.2f left\n", price, what, state.Remaining)
	b.watch(state)
	return nil
}

// ask reports whether a purchase would be accepted now. It reserves nothing.
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

// watch raises an alert when four fifths are spent, and not again until it has been below. The
// limit is empty when the next month begins.
func (b *budget) watch(state outbound.State) {
	spent := state.Level / state.Limit.Capacity
	if spent >= 0.8 && !b.alerted {
		b.printf("   ALERT: %.0f %% of the budget is spent\n", 100*spent)
	}
	b.alerted = spent >= 0.8
	if state.Full {
		b.printf("   FULL: %.0f EUR come back on %s\n", state.Limit.Capacity, b.day(state.EmptyIn))
	}
}

// day returns the date after some time, in the zone of the budget.
func (b *budget) day(in time.Duration) string {
	return time.Now().Add(in).In(b.zone).Format("2 January")
}

// printf writes a line. It ignores the error of that.
func (b *budget) printf(format string, args ...any) { fmt.Fprintf(b.out, format, args...) }
