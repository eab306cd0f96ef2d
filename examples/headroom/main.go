// Command headroom runs users' calls and batch work by one limit, in two processes:
//
//	go run ./examples/headroom
//
// Batch work could use far more than the limit. With a Headroom its queue uses only a part of
// that. Look at how long users wait, and at the calls of batch work. Two buckets in one store
// stand for the processes.
package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

const (
	shows = "Batch work leaves a part of the limit free for users."
	calls = 10 // of users, and they come evenly
	every = 400 * time.Millisecond
)

var (
	limit   = outbound.Window(40, 2*time.Second)
	example = cli.Example{Name: "headroom", Usage: shows + "\n\n\tgo run ./examples/headroom", New: cli.NoFlags(run)}
)

func main() { example.Main() }

func run(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "%s\n\nThe limit is %s. A user calls each %v.\nThe longest wait of a user:\n", shows, limit, every)
	for _, headroom := range []float64{0, 0.25} {
		longest, batch, err := serve(ctx, headroom)
		if err != nil {
			return err
		}
		bar := strings.Repeat("█", min(max(1, int(longest.Seconds()*5)), 15))
		fmt.Fprintf(out, "  Headroom %-5v%-15s %.1f s, %d batch calls\n", headroom, bar, longest.Seconds(), batch)
	}
	return nil
}

// serve makes calls of users and of batch work. It returns the users' longest wait, and how many
// calls of batch work have left.
func serve(ctx context.Context, headroom float64) (longest time.Duration, batch int64, err error) {
	common := store.NewMemory()
	process := func(c queue.Config) *queue.Queue {
		return queue.New(outbound.Must(outbound.NewSharedBucket(common, "crm", limit)), c)
	}
	work, users := process(queue.Config{Headroom: headroom}), process(queue.Config{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var made atomic.Int64
	for range 20 {
		go func() {
			for outbound.Do(ctx, work, outbound.Cost{1}, func(context.Context) error { return nil }) == nil {
				made.Add(1)
			}
		}()
	}
	waits := make(chan time.Duration, calls)
	for range calls {
		go func() {
			came := time.Now()
			if permit, err := users.Acquire(ctx, outbound.Cost{1}); err == nil {
				permit.Done()
			}
			waits <- time.Since(came)
		}()
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
	for range calls {
		longest = max(longest, <-waits)
	}
	return longest, made.Load(), ctx.Err()
}
