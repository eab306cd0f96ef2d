// Command inflight has three processes share ten calls in flight, and ends one of them as kill -9
// does:
//
//	go run ./examples/inflight
//
// Look at the sum: it is never above ten. Look at the slots after the end of one process: the rest
// gets them within a lease of 3 s. All runs in this program, with a store in memory instead of
// Redis or PostgreSQL.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

const (
	slots   = 10
	lease   = 3 * time.Second
	callers = 8 // in each process
	takes   = 300 * time.Millisecond
)

const shows = "Three processes share ten calls in flight."

var example = cli.Example{Name: "inflight", Usage: shows + "\n\n\tgo run ./examples/inflight", New: cli.NoFlags(run)}

func main() { example.Main() }

// process stands for one process, to the store and to the API.
type process struct {
	store.Store
	killed   atomic.Bool
	inFlight atomic.Int64
}

// Update implements [store.Store]. A process that was killed asks no more.
func (p *process) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if p.killed.Load() {
		return store.Reply{}, store.ErrUnavailable
	}
	return p.Store.Update(ctx, key, op)
}

// work calls the API until ctx ends. A call waits for a slot for at most 5 s.
func (p *process) work(ctx context.Context, limiter outbound.Limiter) error {
	for ctx.Err() == nil {
		err := outbound.Do(ctx, limiter, outbound.Cost{1}, func(ctx context.Context) error {
			p.inFlight.Add(1)
			defer p.inFlight.Add(-1)
			return pause(ctx, takes)
		})
		if p.killed.Load() {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shared := store.NewMemory()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	failed := make(chan error, 3*callers)
	processes := make([]*process, 3)
	for i := range processes {
		p := &process{Store: shared}
		processes[i] = p
		bucket, err := outbound.NewSharedBucket(p, "erp", outbound.InFlight(slots).Lease(lease))
		if err != nil {
			return err
		}
		limiter := queue.New(bucket, queue.Config{MaxWait: 5 * time.Second})
		for range callers {
			all.Go(func() {
				if err := p.work(ctx, limiter); err != nil {
					failed <- err
				}
			})
		}
	}
	fmt.Fprintf(out, "%s\n\n  time  in flight of each\n", shows)
	for second := range 9 {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		note := ""
		if second == 3 {
			processes[2].killed.Store(true)
			note = "  the third is killed"
		}
		sum := int64(0)
		fmt.Fprintf(out, "  %2d s ", second+1)
		for _, p := range processes {
			n := p.inFlight.Load()
			if p.killed.Load() {
				n = 0
			}
			sum += n
			fmt.Fprintf(out, " %2d", n)
		}
		fmt.Fprintf(out, "  in all %2d of %d%s\n", sum, slots, note)
	}
	select {
	case err := <-failed:
		return errors.Join(errors.New("a call was refused"), err)
	default:
		return nil
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
