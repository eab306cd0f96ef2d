// Command retry makes calls to an API that has bad days, and sees all of them through.
//
//	go run ./examples/retry
//
// The API behaves as Stripe does. It allows 10 calls in any second, and its 429 does not say how
// long to wait. It fails now and then, and once it is closed for two seconds. Two clients make the
// same calls at the same time, each to an API of its own, for some 20 seconds. The first is a plain
// http.Client: it loses the calls that are refused or fail. The second tries again, and each
// attempt waits in the queue.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	shared "github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
	"github.com/dripfeed/dripfeed/transport/retry"
)

const (
	shows   = "An API with bad days is called with retries and without."
	rate    = 10 // calls that the API allows in any second
	workers = 20
)

var example = cli.Example{Name: "retry", Usage: shows + "\n\n\tgo run ./examples/retry [-calls N]", New: program}

func main() { example.Main() }

func program(flags *flag.FlagSet) cli.Run {
	calls := 150
	cli.Number(flags, &calls, "calls", 1, 10_000, "calls to make")
	return func(ctx context.Context, out io.Writer) error { return run(ctx, out, int32(calls)) }
}

// paced is the client to copy: a bucket for the API's limit, a queue for calls and their later
// attempts, and retries above. A nil base is http.DefaultTransport.
func paced(base http.RoundTripper) *http.Client {
	bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(rate)))
	return retry.NewClient(&transport.Transport{
		Base:    base,
		Limiter: queue.New(bucket, queue.Config{MaxWait: time.Minute}),
		Profile: profile.Stripe, // how the API says no
	}).StandardClient()
}

// run makes the calls by both clients, and prints their results.
func run(ctx context.Context, out io.Writer, calls int32) error {
	fmt.Fprintf(out, "%s\n%d calls by %d workers.\n\n", shows, calls, workers)
	alone, ours := newAPI(), newAPI()
	jobs := []*job{{name: "plain client", api: alone, client: &http.Client{Transport: alone}}, {name: "queue and retry", api: ours, client: paced(ours)}}
	var all sync.WaitGroup
	for _, j := range jobs {
		all.Go(func() { j.run(ctx, calls) })
	}
	all.Wait()
	fmt.Fprintf(out, "%-15s %8s %4s %8s %7s %6s %5s\n", "", "answered", "lost", "attempts", "refused", "failed", "sec")
	for _, j := range jobs {
		refused, failed := int32(j.api.Report().Refused), j.api.failed.Load()
		fmt.Fprintf(out, "%-15s %8d %4d %8d %7d %6d %5.1f\n", j.name, j.answered.Load(), j.lost.Load(), j.api.calls.Load(), refused, failed, j.took.Seconds())
	}
	for _, j := range jobs {
		if j.lost.Load() > 0 {
			fmt.Fprintf(out, "\n%s has lost %d, one of them with:\n%v\n", j.name, j.lost.Load(), j.why.Load())
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return nil
}

// job is calls that some workers make with one client.
type job struct {
	name   string
	api    *moody
	client *http.Client

	made, answered, lost atomic.Int32
	why                  atomic.Value // of a call that is lost
	took                 time.Duration
}

func (j *job) run(ctx context.Context, calls int32) {
	start := time.Now()
	_ = shared.Together(workers, func(int) error {
		for n := j.made.Add(1); n <= calls && ctx.Err() == nil; n = j.made.Add(1) {
			// The key makes a POST safe to send again, for the API and so for the client.
			resp, err := shared.Do(ctx, j.client, http.MethodPost, "https://api.example.com/v1/charges", "amount=2000", "Idempotency-Key", fmt.Sprint("order-", n))
			switch {
			case err != nil:
				j.lost.Add(1)
				j.why.Store(err.Error())
			case resp.StatusCode >= 400:
				j.lost.Add(1)
				j.why.Store("status " + resp.Status)
			default:
				j.answered.Add(1)
			}
		}
		return nil
	})
	j.took = time.Since(start)
}
