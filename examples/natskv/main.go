// Command natskv makes calls at the pace of a bucket that is in NATS, in a key-value bucket of
// JetStream:
//
//	nats-server -js
//	go run -C examples/natskv . -n 5
//
// Run it twice at a time, on any machines: the runs share the limit.
//
// # What to look at
//
// rows.go is all that a store in NATS takes, and the traps of NATS.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/queue"
)

func main() {
	url := flag.String("nats", nats.DefaultURL, "the URL of the server")
	n := flag.Int("n", 5, "calls")
	flag.Parse()
	if err := run(*url, *n); err != nil {
		fmt.Fprintf(os.Stderr, "natskv: %v (nats-server -js starts a server)\n", err)
		os.Exit(1)
	}
}

// run makes n calls, two a second over all runs.
func run(url string, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rows, err := open(ctx, url)
	if err != nil {
		return err
	}
	defer rows.conn.Close()
	bucket, err := outbound.NewSharedBucket(rowstore.New(rows, rowstore.Config{Timeout: 5 * time.Second}), "weather", outbound.PerSecond(2))
	if err != nil {
		return err
	}
	calls := queue.New(bucket, queue.Config{})
	for i := range n {
		err := outbound.Do(ctx, calls, outbound.Cost{1}, func(context.Context) error {
			fmt.Printf("call %d at %s\n", i+1, time.Now().Format("05.00"))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
