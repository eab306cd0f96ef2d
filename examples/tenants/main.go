// Command tenants gives each of 5000 tenants a quota of its own, made when the tenant
// first calls and dropped when it is idle:
//
//	go run ./examples/tenants
//
// Look at the noisy tenant, which calls without end: only its own calls are refused. Look at the
// newcomers of a full Keyed: they share one bucket, so that a flood of names cannot use up the
// memory. And look at the tenants that come later: they replace idle ones.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
)

const (
	tenants   = 5_000
	noise     = 20_000 // calls of the noisy tenant
	newcomers = 1_000
)

// limit is the limit of each tenant: a burst of three, at most five in any second.
var limit = outbound.PerSecond(5).Burst(3)

const shows = "Each of 5000 tenants has a quota of its own."

var example = cli.Example{Name: "tenants", Usage: shows + "\n\n\tgo run ./examples/tenants", New: cli.NoFlags(run)}

func main() { example.Main() }

func run(ctx context.Context, out io.Writer) error {
	overflow, err := outbound.NewBucket("all newcomers", limit)
	if err != nil {
		return err
	}
	quotas := &outbound.Keyed[string]{
		// Look up here what a tenant has paid for. Return a queue around the bucket to let
		// its calls wait.
		New: func(tenant string) (outbound.Limiter, error) {
			return outbound.NewBucket(tenant, limit)
		},
		Max:      tenants,
		Overflow: overflow,
	}

	var quiet, noisy tally
	var all sync.WaitGroup
	all.Go(func() {
		for range noise {
			noisy.call(ctx, quotas.For("tenant 0"))
		}
	})
	all.Go(func() {
		for range 3 {
			for i := 1; i < tenants; i++ {
				quiet.call(ctx, quotas.For(fmt.Sprint("tenant ", i)))
			}
		}
	})
	all.Wait()
	fmt.Fprintf(out, "%s\n\n", shows)
	fmt.Fprintf(out, "%d quiet ones, 3 calls each  %v\n", tenants-1, quiet)
	fmt.Fprintf(out, "a noisy one                    %v\n", noisy)
	fmt.Fprintf(out, "buckets: %d of at most %d\n\n", quotas.Len(), quotas.Max)

	var early tally
	for i := range newcomers {
		early.call(ctx, quotas.For(fmt.Sprint("newcomer ", i)))
	}
	fmt.Fprintf(out, "%d newcomers in one burst    %v\n  They share the bucket for all newcomers.\n", newcomers, early)

	// All buckets run dry, and are then as good as new ones.
	pause := time.Duration((limit.Capacity/limit.LeakRate + 0.2) * float64(time.Second))
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return ctx.Err()
	}
	var late tally
	for i := range newcomers {
		late.call(ctx, quotas.For(fmt.Sprint("newcomer ", i)))
	}
	fmt.Fprintf(out, "the same %.1f s later           %v\n  Each has replaced an idle tenant.\n", pause.Seconds(), late)
	fmt.Fprintf(out, "buckets: %d, never more than %d\n", quotas.Len(), quotas.Max)
	return errors.Join(quiet.err, noisy.err, early.err, late.err)
}

// tally counts calls.
type tally struct {
	admitted, refused int
	err               error // neither of both
}

func (t *tally) call(ctx context.Context, l outbound.Limiter) {
	permit, err := l.Acquire(ctx, outbound.Cost{1})
	switch {
	case errors.Is(err, outbound.ErrThrottled):
		t.refused++
		return
	case err != nil:
		t.err = err
		return
	}
	defer permit.Done()
	t.admitted++ // here it would call the API
}

func (t tally) String() string {
	return fmt.Sprintf("%5d admitted, %5d refused", t.admitted, t.refused)
}
