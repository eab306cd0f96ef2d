package jobs

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Do is [outbound.Do] for those who adapt a job system. It also reports whether the job has run, and for how long the
// API has asked to wait, if the job has told its permit: a job that has failed is not to be tried again
// before that. It is a second where the API has refused the call and does not say for how long.
func Do(ctx context.Context, l outbound.Limiter, c outbound.Cost, job func(context.Context) error) (ran bool, pause time.Duration, err error) {
	var asked atomic.Int64 // atomic, because a permit may be told after the end of its call
	l = outbound.Observe(l, "", func(_ context.Context, e outbound.Event) {
		if e.Kind == outbound.EventHeld && e.Err == nil {
			asked.Store(max(asked.Load(), int64(cmp.Or(e.Hold, time.Second)))) // so a bucket does
		}
	})
	err = outbound.Do(ctx, l, c, func(ctx context.Context) error {
		ran = true
		return job(ctx)
	})
	return ran, time.Duration(asked.Load()), err
}
