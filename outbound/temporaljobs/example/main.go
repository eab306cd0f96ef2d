// Command example runs Temporal workers in several processes that share the limit of one API:
//
//	go run -C outbound/temporaljobs ./example
//
// Look at the table: each activity has one attempt, and the API refuses at most a call that a busy
// machine has delayed. Workers have free slots. With -await=false the activities book themselves,
// and have about two attempts.
//
// The workers are processes of this program, and share the quota in Redis. It serves the API
// itself, which is strict: it counts the calls of any second. It starts a server by the command
// "temporal server start-dev", and a redis-server, where these are installed. The servers can be
// yours:
//
//	go run -C outbound/temporaljobs ./example -server 127.0.0.1:7233 -redis redis://localhost:6379
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"go.temporal.io/sdk/client"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

func main() {
	if text := os.Getenv(workerEnv); text != "" {
		signal.Ignore(os.Interrupt) // the first process ends the workers
		if err := work(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "example: worker:", err)
			os.Exit(1)
		}
		return
	}
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
	server, redis       string
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
	f.StringVar(&p.redis, "redis", "", "use the Redis server at this `URL`; else one is started")
	f.IntVar(&p.workers, "workers", 3, "`N`, 1 to 20: worker processes")
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
		return 2, errors.New("a number is out of range: see -h")
	}
	if p.server == "" {
		s, err := startServer(ctx, stderr)
		if err != nil {
			return 2, err
		}
		defer s.end()
		p.server = s.address
	}
	if p.redis == "" {
		s, err := startRedis()
		if err != nil {
			return 2, err
		}
		defer s.end()
		p.redis = s.address
	}
	if rdb, err := dialRedis(ctx, p.redis); err != nil {
		return 2, err
	} else if err := rdb.Close(); err != nil {
		return 2, err
	}
	if err := try(ctx, p, stdout, stderr); err != nil {
		return 1, err
	}
	return 0, nil
}

// try has worker processes run the workflow, and prints a table.
func try(ctx context.Context, p params, stdout, stderr io.Writer) error {
	c, err := dial(ctx, p.server)
	if err != nil {
		return err
	}
	defer c.Close()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(p.rate, time.Second)}}
	server := &http.Server{Handler: api, ReadHeaderTimeout: time.Minute}
	go server.Serve(listen) // until Close, and returns that as its error
	defer server.Close()

	o := order{
		Server: p.server, Redis: p.redis, API: "http://" + listen.Addr().String() + "/", Name: fmt.Sprintf("dripfeed-%d", rand.Uint64()),
		Activities: p.activities, Rate: p.rate, Await: p.await,
	}
	begin := time.Now()
	flow, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: o.Name, TaskQueue: o.Name}, "CallAll")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, p.workers)
	fleet := make([]*process, p.workers)
	for i := range fleet {
		if fleet[i], err = start(o, stderr, ended); err != nil {
			return err
		}
		defer fleet[i].end()
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case err := <-ended:
			cancel(fmt.Errorf("a worker has ended: %w", err))
		case <-done:
		}
	}()
	if err := flow.Get(ctx, nil); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	fmt.Fprintf(stdout, "%d activities, %v calls a second, %.1f s\n\n", p.activities, p.rate, time.Since(begin).Seconds())
	fmt.Fprintln(stdout, "process  attempts  calls")
	for i, w := range fleet {
		fmt.Fprintf(stdout, "%7d  %8d  %5d\n", i+1, w.attempts.Load(), w.calls.Load())
	}
	fmt.Fprintf(stdout, "\nThe API has refused %d calls.\n", api.Report().Refused)
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
