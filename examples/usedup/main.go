// Command usedup foresees when a quota is used up:
//
//	go run ./examples/usedup
//
// The quota is 300 calls in a minute, and calls come 25 times a second. Every two seconds the
// program asks the bucket how long the quota lasts. Explain has the pace of the last seconds, and
// the time until the quota is used up at that pace. Look at the event, which comes once, when 80 %
// is used. For a day's quota the pace is that of up to
// three hours.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
)

const shows = "When a quota of 300 calls in a minute is used up."

var example = cli.Example{Name: "usedup", Usage: shows + "\n\n\tgo run ./examples/usedup", New: cli.NoFlags(run)}

func main() { example.Main() }

func run(ctx context.Context, out io.Writer) error {
	bucket, err := outbound.NewBucket("geocoder", outbound.FixedWindow(300, time.Minute))
	if err != nil {
		return err
	}
	events := make(chan outbound.Event, 1)
	defer bucket.Observe(func(e outbound.Event) {
		if e.Kind == outbound.EventRunsOut { // once in an hour
			events <- e
		}
	})()
	fmt.Fprintln(out, shows)
	tick := time.NewTicker(40 * time.Millisecond)
	defer tick.Stop()
	for calls := 1; ; calls++ {
		select {
		case <-tick.C:
		case e := <-events:
			fmt.Fprintf(out, "event %q in %v\n", e.Kind, e.UsedUpIn.Round(time.Second))
			<-tick.C
		case <-ctx.Done():
			return ctx.Err()
		}
		permit, err := bucket.Acquire(ctx, outbound.Cost{1})
		if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
			fmt.Fprintf(out, "used up: no call leaves for %v\n", full.RetryAfter.Round(time.Second))
			return nil
		}
		if err != nil {
			return err
		}
		permit.Done()
		if calls%50 != 0 {
			continue
		}
		is, err := bucket.Explain(ctx, outbound.Cost{1})
		if err != nil {
			return err
		}
		quota, lasts := is.States[0], "lasts"
		if quota.UsedUpIn > 0 {
			lasts = fmt.Sprint("is used up in ", quota.UsedUpIn.Round(time.Second))
		}
		fmt.Fprintf(out, "%3.0f calls, %.1f a second: the quota %s\n", quota.Level, quota.Pace, lasts)
	}
}
