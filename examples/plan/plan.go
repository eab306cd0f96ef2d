package main

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/virtual"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// plan is what is to be tried.
type plan struct {
	limits  []limit
	calls   int
	workers int
	callers int // of each worker
	latency time.Duration
}

// What the program tries at most. A machine needs up to half a minute and 250 MB for it.
const (
	mostCalls   = 500_000
	mostCallers = 20_000 // of all workers
	mostWorkers = 1_000
	mostLatency = time.Hour
	// mostHours is the time of all workers together: while its calls wait, each asks the store
	// now and then whether another has paused the bucket.
	mostHours = 10_000
)

// check returns why a plan cannot be tried; nil: it can.
func (p plan) check() error {
	switch {
	case p.calls < 1 || p.calls > mostCalls:
		return fmt.Errorf("-calls needs 1 to %d, not %d", mostCalls, p.calls)
	case p.workers < 1 || p.workers > mostWorkers:
		return fmt.Errorf("-workers needs 1 to %d, not %d", mostWorkers, p.workers)
	case p.callers < 1 || p.callers > mostCallers/p.workers:
		return fmt.Errorf("-callers needs 1 to %d with %d workers, not %d", mostCallers/p.workers, p.workers, p.callers)
	case p.latency < 0 || p.latency > mostLatency:
		return fmt.Errorf("-latency needs 0s to %v, not %v", mostLatency, p.latency)
	}
	if least, what := p.least(""); least.Hours()*float64(p.workers) > mostHours {
		return fmt.Errorf("%d calls take %s at least (%s): too long to try with %s", p.calls, short(least), what, count(p.workers, "worker"))
	}
	return nil
}

// byCallers is what bounds calls that no limit bounds.
const byCallers = "the callers"

// least returns how long the calls take at least, and what bounds them, if it were not for one
// of the bounds.
func (p plan) least(without string) (least time.Duration, what string) {
	if without != byCallers {
		each := (p.calls + p.workers*p.callers - 1) / (p.workers * p.callers)
		least, what = times(float64(each), p.latency), byCallers
	}
	for _, l := range p.limits {
		if d := l.least(p.calls); l.Name != without && (d > least || what == "") {
			least, what = d, l.Name
		}
	}
	return least, what
}

// try runs the plan in virtual time.
func (p plan) try() (r *result, err error) {
	virtual.Run(func() { r, err = p.run() })
	return r, err
}

func (p plan) run() (*result, error) {
	var limits []outbound.Limit
	for _, l := range p.limits {
		limits = append(limits, l.Limit)
	}
	store := store.NewMemory() // as Redis for a real fleet
	var fleet []outbound.Limiter
	for range p.workers {
		bucket, err := outbound.NewSharedBucket(store, "api", limits...)
		if err != nil {
			return nil, err
		}
		fleet = append(fleet, queue.New(bucket, queue.Config{}))
	}
	start := time.Now()
	load := outboundtest.Load{Calls: p.calls, Callers: p.callers, Latency: p.latency}
	report := load.Run(context.Background(), fleet...)
	if report.Failed > 0 {
		return nil, fmt.Errorf("%d calls have failed, the first with: %w", report.Failed, report.Err)
	}
	return newResult(p, report, start), nil
}
