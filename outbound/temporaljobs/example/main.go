// Command example runs Temporal workers that call one API as fast as they may together:
//
//	go run -C outbound/temporaljobs ./example
//
// Look at the table: the API refuses nothing, each activity has one attempt, and no worker is full of
// activities that wait. With -await=false the workflows do not book, and the activities have about two.
//
// The program starts a server by the command "temporal server start-dev" where that is installed. The
// server can be yours:
//
//	go run -C outbound/temporaljobs ./example -server 127.0.0.1:7233
//
// The workers are of one process here, and share the bucket in its memory. Those of several share it
// in Redis or in PostgreSQL, by package redisstore or pgstore, and nothing else changes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/temporaljobs"
	"github.com/dripfeed/dripfeed/queue/line"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	status, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
	}
	os.Exit(status)
}

// params are the flags.
type params struct {
	server              string
	workers, activities int
	rate                float64
	await               bool
}

// run is the program, and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (status int, err error) {
	var p params
	f := flag.NewFlagSet("example", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&p.server, "server", "", "use the Temporal server at this `address`; else one is started")
	f.IntVar(&p.workers, "workers", 3, "`N`, 1 to 20: workers")
	f.IntVar(&p.activities, "activities", 100, "`N`, 1 to 1000: activities, of one workflow")
	f.Float64Var(&p.rate, "rate", 10, "`N`, 1 to 1000: calls per second")
	f.BoolVar(&p.await, "await", true, "the workflow books the places")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0, nil
		}
		return 2, err
	}
	switch {
	case f.NArg() > 0:
		return 2, fmt.Errorf("%q is one argument too many", f.Arg(0))
	case p.workers < 1 || p.workers > 20 || p.activities < 1 || p.activities > 1000 || !(p.rate >= 1 && p.rate <= 1000):
		return 2, errors.New("a number is out of its range: see -h")
	}
	if p.server == "" {
		s, err := startServer(ctx, stderr)
		if err != nil {
			return 2, err
		}
		defer s.end()
		p.server = s.address
	}
	if err := try(ctx, p, stdout); err != nil {
		return 1, err
	}
	return 0, nil
}

// attempts counts those of a worker.
type attempts struct{ all, ran atomic.Int64 }

// counted is a line that counts who comes.
type counted struct {
	*line.Line
	all *atomic.Int64
}

func (c counted) Acquire(ctx context.Context, cost outbound.Cost) (outbound.Permit, error) {
	c.all.Add(1)
	return c.Line.Acquire(ctx, cost)
}

// try runs the workflow, and prints a table.
func try(ctx context.Context, p params, stdout io.Writer) error {
	c, err := dial(ctx, p.server)
	if err != nil {
		return err
	}
	defer c.Close()
	name := fmt.Sprintf("dripfeed-%d", rand.Uint64())
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(p.rate, time.Second)}}
	store, tickets := leak.NewMemory(), new(memory)
	count := make([]attempts, p.workers)
	for i := range count {
		bucket, err := outbound.NewSharedBucket(store, "api", outbound.PerSecond(p.rate))
		if err != nil {
			return err
		}
		calls := counted{line.New(bucket, line.Config{}), &count[i].all}
		limiter := func(info activity.Info) (outbound.Limiter, outbound.Cost) {
			if info.ActivityType.Name != "Call" {
				return nil, outbound.Cost{}
			}
			return calls, outbound.Cost{1}
		}
		w := worker.New(c, name, worker.Options{
			Interceptors:      []interceptor.WorkerInterceptor{temporaljobs.NewInterceptor(limiter, tickets)},
			WorkerStopTimeout: 5 * time.Second,
		})
		w.RegisterWorkflowWithOptions(p.callAll, workflow.RegisterOptions{Name: "CallAll"})
		w.RegisterActivityWithOptions(func(ctx context.Context) error {
			count[i].ran.Add(1)
			return call(ctx, api)
		}, activity.RegisterOptions{Name: "Call"})
		if err := w.Start(); err != nil {
			return err
		}
		defer w.Stop()
	}
	begin := time.Now()
	flow, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: name, TaskQueue: name}, "CallAll")
	if err != nil {
		return err
	}
	if err := flow.Get(ctx, nil); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d activities, %v calls a second, %.1f s\n\n", p.activities, p.rate, time.Since(begin).Seconds())
	fmt.Fprintln(stdout, "worker  attempts  calls")
	for i := range count {
		fmt.Fprintf(stdout, "%6d  %8d  %5d\n", i+1, count[i].all.Load(), count[i].ran.Load())
	}
	fmt.Fprintf(stdout, "\nThe API has refused %d calls.\n", api.Report().Refused)
	return nil
}

// callAll is the workflow.
func (p params) callAll(ctx workflow.Context) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second},
	})
	all := workflow.NewWaitGroup(ctx)
	var failed error
	for range p.activities {
		all.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer all.Done()
			var err error
			if p.await {
				ctx, err = temporaljobs.Await(ctx, "Call", outbound.Cost{1})
			}
			if err == nil {
				err = workflow.ExecuteActivity(ctx, "Call").Get(ctx, nil)
			}
			if err != nil {
				failed = err
			}
		})
	}
	all.Wait(ctx)
	return failed
}

// call is what the activity does.
func call(ctx context.Context, api http.RoundTripper) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com", nil)
	if err != nil {
		return err
	}
	resp, err := api.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// memory is the Tickets of workers of one process. It keeps them all; a fleet's are in a store that forgets.
type memory struct{ tickets sync.Map }

func (m *memory) Get(_ context.Context, activity string) string {
	ticket, _ := m.tickets.Load(activity)
	text, _ := ticket.(string)
	return text
}

func (m *memory) Put(_ context.Context, activity, ticket string, _ time.Duration) error {
	m.tickets.Store(activity, ticket)
	return nil
}

// dial waits for a server that has just been started.
func dial(ctx context.Context, address string) (c client.Client, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	for {
		c, err = client.DialContext(ctx, client.Options{HostPort: address, Logger: quiet})
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(200 * time.Millisecond):
		}
	}
}
