package outbound

import (
	"context"
	"fmt"
	"iter"

	"github.com/dripfeed/dripfeed/outbound/internal/parallel"
)

// Each runs a job for each of items as by [Do], at most workers of them at the same time. It yields
// every item with its job's error, in the order of their ends. A job over the limit is not run, and
// its error is a [*ThrottledError]: give Each a queue if the jobs should wait. Pace either the jobs
// or the client that they use, as [Do] explains. With the same limiter in both a job is charged
// once.
//
//	for id, err := range outbound.Each(ctx, queue, outbound.Cost{1}, 8, ids, fetch) {
//
// The cost c is a [Cost] that each job takes, or a function that returns the cost of an item.
// Cost{} is [ErrInvalid]. A job without a cost has Cost{Free}.
//
//	tokens := func(d Document) outbound.Cost { return outbound.Cost{1, d.Tokens} }
//	for d, err := range outbound.Each(ctx, queue, tokens, 8, documents, index) {
//
// At most workers items have been taken and not yet been yielded, however many there are: a slow
// loop slows the jobs down. Ranging again begins again.
//
// The Progress of a queue, as l, knows how many jobs are left, and when the last one begins.
//
// When ctx is done Each takes no more items. Running jobs continue with their ctx, and an item that
// was taken but not run is yielded with ctx's error. After the loop, ctx.Err() shows that there may
// be more items. A break or return takes no more items either, and waits for the running jobs
// without yielding their results. It also waits until items has returned. Items that block must end
// by a ctx, as those of [Receive] do: cancel it before the break. So no goroutine is left behind.
//
// items, and every job with its cost function, runs in a goroutine of its own. After a panic in one
// of them, or a [runtime.Goexit], Each takes no more items. When the running jobs have ended, the
// panic continues, with the same value, in the goroutine that ranges.
//
// If l, c, items or job is nil, or workers below 1, the loop gets one zero item with an error:
// [ErrInvalid].
func Each[T any, C Cost | func(T) Cost](ctx context.Context, l Limiter, c C, workers int, items iter.Seq[T], job func(context.Context, T) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		cost := costOf[T](c)
		var bad error
		switch {
		case l == nil:
			bad = fmt.Errorf("%w: nil Limiter of Each", ErrInvalid)
		case cost == nil:
			bad = fmt.Errorf("%w: nil cost of Each", ErrInvalid)
		case items == nil:
			bad = fmt.Errorf("%w: nil items of Each", ErrInvalid)
		case job == nil:
			bad = fmt.Errorf("%w: nil job of Each", ErrInvalid)
		case workers < 1:
			bad = fmt.Errorf("%w: Each with %d workers", ErrInvalid, workers)
		}
		if bad != nil {
			var none T
			yield(none, bad)
			return
		}
		parallel.Each(ctx, workers, items, func(item T) error {
			return Do(ctx, l, cost(item), func(ctx context.Context) error { return job(ctx, item) })
		})(yield)
	}
}

// Receive returns what comes from a channel, until it is closed or ctx is
// done, as items for [Each]. Values that are still in the channel when ctx ends
// stay there. A nil channel yields nothing and ends with ctx.
func Receive[T any](ctx context.Context, from <-chan T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for ctx.Err() == nil { // select would choose by lot
			select {
			case v, ok := <-from:
				if !ok || !yield(v) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}
