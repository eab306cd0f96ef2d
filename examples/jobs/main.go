// Command jobs paces background workers by one bucket, in the two ways in which jobs come:
//
//	go run ./examples/jobs
//
// First from a channel: workers share the work, and each job waits in a queue for its turn. Then
// from a job system that looks for due jobs every so often: a job that has no room goes back to
// it, and a jobs.Scheduler tells it when to come again. Look at how often each job runs: twice with
// a Scheduler, and once if its reservation is booked when the job is enqueued. At last several
// tenants share the workers, and one has far more jobs than its quota admits: with Schedulers they
// leave the workers to the others.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
)

const (
	perSecond = 25 // calls that the API allows
	orders    = 25
	reports   = 40
	workers   = 8
	poll      = 250 * time.Millisecond // of the job system
	lead      = 50 * time.Millisecond  // head start of a job before its reservation
)

// shows is what the program shows, in a line.
const shows = "Background jobs wait for their turn at one API."

func main() {
	flag.Usage = func() { fmt.Fprintf(flag.CommandLine.Output(), "%s\n\n\tgo run ./examples/jobs\n", shows) }
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "jobs:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	bucket, err := outbound.NewBucket("shop", outbound.PerSecond(perSecond))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n\n", shows)
	var api api
	if err := shipAll(ctx, out, queue.New(bucket, queue.Config{}), &api); err != nil {
		return err
	}
	if err := sendAll(ctx, out, bucket, &api); err != nil {
		return err
	}
	if err := serveAll(ctx, out); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nIn no second did more than %.0f reports and orders go.\nThe API allows %d.\n",
		api.began.Worst(time.Second).Units, perSecond)
	return nil
}

// shipAll runs a job for each order that comes from a channel.
func shipAll(ctx context.Context, out io.Writer, l outbound.Limiter, api *api) error {
	fmt.Fprintf(out, "%d orders come from a channel to %d workers:\n", orders, workers)
	incoming := make(chan int)
	go func() {
		defer close(incoming)
		for order := range orders {
			select {
			case incoming <- order:
			case <-ctx.Done():
				return
			}
		}
	}()

	start, shipped, failed := time.Now(), 0, 0
	for order, err := range outbound.Each(ctx, l, outbound.Cost{1}, workers, outbound.Receive(ctx, incoming), api.ship) {
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
	fmt.Fprintf(out, "  %d shipped and %d failed in %.1f s.\n", shipped, failed, time.Since(start).Seconds())
	return nil
}

// api stands for the API that the jobs call. A call takes 50 ms.
type api struct{ began outboundtest.History }

var errAddress = errors.New("the address does not exist")

func (a *api) ship(ctx context.Context, order int) error {
	if err := a.send(ctx, order); err != nil {
		return err
	}
	if order%15 == 7 {
		return errAddress
	}
	return nil
}

func (a *api) send(ctx context.Context, _ int) error {
	a.began.Add(time.Now(), 1)
	select {
	case <-time.After(50 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *api) sendJob(ctx context.Context, _ *job) error { return a.send(ctx, 0) }
