// Command channel hands orders from a channel to workers. One bucket paces what they send:
//
//	go run ./examples/channel
//
// outbound.Receive makes the channel a list of work, and outbound.Each runs a job for each order.
// Each job waits in a queue until the bucket has capacity. Look at what the loop gets: every order
// with its result, as the jobs end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

const (
	shows     = "Workers take orders from a channel, at one bucket's pace."
	perSecond = 25 // calls that the API allows
	orders    = 50
	workers   = 8
)

var example = cli.Example{Name: "channel", Usage: shows + "\n\n\tgo run ./examples/channel", New: cli.NoFlags(run)}

func main() { example.Main() }

func run(ctx context.Context, out io.Writer) error {
	bucket, err := outbound.NewBucket("shop", outbound.PerSecond(perSecond))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n\n%d orders come from a channel to %d workers:\n", shows, orders, workers)
	incoming := make(chan int)
	go produce(ctx, incoming)
	start, shipped, failed := time.Now(), 0, 0
	for order, err := range outbound.Each(ctx, queue.New(bucket, queue.Config{}), outbound.Cost{1}, workers, outbound.Receive(ctx, incoming), ship) {
		if err != nil {
			failed++
			fmt.Fprintf(out, "  order %d: %v\n", order, err)
			continue
		}
		shipped++
	}
	if err := ctx.Err(); err != nil { // the loop has ended early
		return err
	}
	fmt.Fprintf(out, "  %d shipped and %d failed in %.1f s.\nThe API allows %d in a second.\n", shipped, failed, time.Since(start).Seconds(), perSecond)
	return nil
}

// produce sends orders, as other parts of a program do.
func produce(ctx context.Context, incoming chan<- int) {
	defer close(incoming)
	for order := range orders {
		select {
		case incoming <- order:
		case <-ctx.Done():
			return
		}
	}
}

var errAddress = errors.New("the address does not exist")

// ship stands for a call of the API, which takes 50 ms.
func ship(ctx context.Context, order int) error {
	if !calls.Sleep(ctx, 50*time.Millisecond) {
		return ctx.Err()
	}
	if order%15 == 7 {
		return errAddress
	}
	return nil
}
