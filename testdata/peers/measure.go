package main

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// mostWrong is the largest share of wrong decisions of a valid measurement.
const mostWrong = 0.01

// manyTurns is the first count of a decision that takes less than a microsecond.
const manyTurns = 1000

// allocated is what a decision allocates.
type allocated struct{ Objects, Bytes float64 }

// timed runs work with counts that grow from first until it takes at least as long
// as least. It returns the time and the allocations per count of the last run.
func timed(least time.Duration, first int, work func(n int)) (ns float64, a allocated) {
	for n := first; ; {
		var took time.Duration
		a = garbage(n, func() {
			began := time.Now()
			work(n)
			took = time.Since(began)
		})
		if took >= least {
			return float64(took) / float64(n), a
		}
		grow := 1.2 * float64(least) / float64(max(took, time.Microsecond))
		n = int(math.Ceil(float64(n) * min(grow, 100)))
	}
}

// garbage returns what work allocates for each of n counts.
func garbage(n int, work func()) (a allocated) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	a.Objects = float64(after.Mallocs-before.Mallocs) / float64(n)
	a.Bytes = float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
	return a
}

// fan divides n turns among goroutines that start together, and returns when the
// last has ended. With one goroutine it uses the caller's. The number of threads
// is GOMAXPROCS, whatever the number of goroutines.
func fan(goroutines, n int, turns func(goroutine, n int)) {
	if goroutines == 1 {
		turns(0, n)
		return
	}
	var done sync.WaitGroup
	gate := make(chan struct{})
	for g := range goroutines {
		share := n / goroutines
		if g < n%goroutines {
			share++
		}
		done.Go(func() {
			<-gate
			turns(g, share)
		})
	}
	close(gate)
	done.Wait()
}

// tally counts decisions, and the wrong ones among them.
type tally struct{ all, wrong atomic.Int64 }

func (t *tally) add(all, wrong int) {
	t.all.Add(int64(all))
	t.wrong.Add(int64(wrong))
}

// share returns the part of wrong decisions, and an error if it is too large.
func (t *tally) share() (float64, error) {
	s := float64(t.wrong.Load()) / float64(max(t.all.Load(), 1))
	if s > mostWrong {
		return s, fmt.Errorf("%d of %d came out wrong", t.wrong.Load(), t.all.Load())
	}
	return s, nil
}

// all returns an error unless the next n results of f are want.
func all(n int, want bool, f func() bool) error {
	for i := range n {
		if f() != want {
			return fmt.Errorf("decision %d is not %t", i+1, want)
		}
	}
	return nil
}
