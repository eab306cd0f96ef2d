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
		e := &each[T]{
			ctx: ctx, limiter: l, cost: cost, items: items, job: job,
			// Elements of no size: its length is the only cost.
			taken:   make(chan struct{}, workers),
			results: make(chan result[T]),
			quit:    make(chan struct{}),
		}
		e.run(yield)
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
	limiter Limiter
	cost    func(T) Cost
	items   iter.Seq[T]
	job     func(context.Context, T) error

	taken   chan struct{} // one for each item that was taken and has not been received
	results chan result[T]
	quit    chan struct{} // closed to take no more items
}

// result is the result of an item or, without an item, how items broke.
type result[T any] struct {
	item   T
	isItem bool
	err    error
	broken
}

// broken is how a function ended that did not return.
type broken struct {
	panicked bool
	value    any
	exited   bool // by runtime.Goexit
}

// brokenBy returns how a function ended, for its last defer.
func brokenBy(returned bool, value any) broken {
	return broken{panicked: value != nil, value: value, exited: !returned && value == nil}
}

func (b *broken) again() {
	switch {
	case b.panicked:
		panic(b.value)
	case b.exited:
		runtime.Goexit()
	}
}

func (e *each[T]) run(yield func(T, error) bool) {
	go e.feed()
	stop := sync.OnceFunc(func() { close(e.quit) })
	defer func() { // a panic or Goexit of the loop's body goes on when the jobs have ended
		stop()
		for range e.results {
		}
	}()
	var first broken
	more := true
	for r := range e.results {
		if r.isItem {
			<-e.taken
		}
		if (r.panicked || r.exited) && !first.panicked && !first.exited {
			first = r.broken
			more = false
		}
		if more && r.isItem {
			more = yield(r.item, r.err)
		}
		if !more {
			stop()
		}
	}
	first.again()
}

// feed begins a job for each item, and waits for all of them.
func (e *each[T]) feed() {
	var jobs sync.WaitGroup
	returned := false
	defer func() {
		if b := brokenBy(returned, recover()); b.panicked || b.exited {
			e.results <- result[T]{broken: b}
		}
		jobs.Wait()
		close(e.results)
	}()
	if e.next() {
		for item := range e.items {
			jobs.Go(func() { e.do(item) })
			if !e.next() {
				break
			}
		}
	}
	returned = true
}

// next waits until one more item can be taken, and reports whether to take it.
func (e *each[T]) next() bool {
	select {
	case e.taken <- struct{}{}:
	case <-e.quit:
		return false
	case <-e.ctx.Done():
		return false
	}
	select { // the select above chooses by lot
	case <-e.quit:
		return false
	default:
		return e.ctx.Err() == nil
	}
}

func (e *each[T]) do(item T) {
	r := result[T]{item: item, isItem: true}
	returned := false
	defer func() {
		r.broken = brokenBy(returned, recover())
		e.results <- r
	}()
	if r.err = e.ctx.Err(); r.err == nil {
		r.err = Do(e.ctx, e.limiter, e.cost(item), func(ctx context.Context) error { return e.job(ctx, item) })
	}
	returned = true
}
