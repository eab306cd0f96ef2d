package outbound

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"sync"
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
		more, stop := context.WithCancel(ctx)
		e := &each[T]{
			ctx: ctx, more: more, limiter: l, cost: cost, items: items, job: job,
			// Elements of no size: its length is the only cost.
			taken:   make(chan struct{}, workers),
			results: make(chan result[T]),
		}
		e.run(yield, stop)
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

// each is one range over an Each. Jobs and items send their results to the
// goroutine that ranges, which receives until all have come, whatever happens.
type each[T any] struct {
	ctx     context.Context
	more    context.Context // ends with ctx, or earlier to take no more items
	limiter Limiter
	cost    func(T) Cost
	items   iter.Seq[T]
	job     func(context.Context, T) error

	taken   chan struct{} // one for each item that was taken and has not been received
	results chan result[T]
}

// result is how a function ended: that of an item, or items itself.
type result[T any] struct {
	item   T
	isItem bool
	err    error
	panic  any  // its value, or nil
	exited bool // by runtime.Goexit
}

// broken reports whether the function has not returned.
func (r *result[T]) broken() bool { return r.panic != nil || r.exited }

func (e *each[T]) run(yield func(T, error) bool, stop func()) {
	go e.feed()
	defer func() { // a panic or Goexit of the loop's body goes on when the jobs have ended
		stop()
		for range e.results {
		}
	}()
	var first result[T] // the first that is broken
	more := true
	for r := range e.results {
		if r.isItem {
			<-e.taken
		}
		if r.broken() && !first.broken() {
			first, more = r, false
		}
		if more && r.isItem {
			more = yield(r.item, r.err)
		}
		if !more {
			stop()
		}
	}
	switch {
	case first.panic != nil:
		panic(first.panic)
	case first.exited:
		runtime.Goexit()
	}
}

// feed begins a job for each item, and waits for all of them.
func (e *each[T]) feed() {
	var jobs sync.WaitGroup
	defer func() {
		jobs.Wait()
		close(e.results)
	}()
	e.do(result[T]{}, func(*result[T]) {
		if !e.next() {
			return
		}
		for item := range e.items {
			jobs.Go(func() { e.do(result[T]{item: item, isItem: true}, e.work) })
			if !e.next() {
				break
			}
		}
	})
}

// next waits until one more item can be taken, and reports whether to take it.
func (e *each[T]) next() bool {
	select {
	case e.taken <- struct{}{}:
	case <-e.more.Done():
	}
	return e.ctx.Err() == nil && e.more.Err() == nil // select chooses by lot, and more ends after ctx
}

// work runs the job of an item.
func (e *each[T]) work(r *result[T]) {
	if r.err = e.ctx.Err(); r.err == nil {
		r.err = Do(e.ctx, e.limiter, e.cost(r.item), func(ctx context.Context) error { return e.job(ctx, r.item) })
	}
}

// do runs f, and sends how it has ended.
func (e *each[T]) do(r result[T], f func(*result[T])) {
	returned := false
	defer func() {
		r.panic = recover()
		r.exited = !returned && r.panic == nil
		e.results <- r
	}()
	f(&r)
	returned = true
}
