// Package parallel runs a job for each item of a sequence, several at the same time.
package parallel

import (
	"context"
	"iter"
	"runtime"
	"sync"
)

// Each runs job for each of items, at most workers of them at the same time, and yields every item
// with its job's error, in the order of their ends. At most workers items have been taken and not
// yet been yielded. workers is at least 1.
//
// When ctx is done, or the loop is left, Each takes no more items. An item that was taken when ctx
// ended is yielded with ctx's error, and not run. After a panic or a [runtime.Goexit] in a job or
// in items, Each yields nothing more. It returns when items and all running jobs have ended, and
// then repeats the first panic or Goexit in the goroutine that ranges.
func Each[T any](ctx context.Context, workers int, items iter.Seq[T], job func(T) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		more, stop := context.WithCancel(ctx)
		e := &each[T]{
			ctx: ctx, more: more, items: items, job: job,
			// Elements of no size: its length is the only cost.
			taken:   make(chan struct{}, workers),
			results: make(chan result[T]),
		}
		e.run(yield, stop)
	}
}

// each is one range over an Each. Jobs and items send their results to the goroutine that ranges.
// It receives until all have come, whatever happens.
type each[T any] struct {
	ctx   context.Context
	more  context.Context // ends with ctx, or earlier to take no more items
	items iter.Seq[T]
	job   func(T) error

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
		r.err = e.job(r.item)
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
