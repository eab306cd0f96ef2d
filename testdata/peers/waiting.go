package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// releaseRate is the number of waiters that may go per second in the test of
// their release.
const releaseRate = 100_000

func waits(c contender) bool           { return c.wait != nil }
func waitsAndCancels(c contender) bool { return c.wait != nil && c.cancels }
func waitingSection(o options) string  { return strconv.Itoa(o.Waiters) + " goroutines that wait" }
func idealRelease(n int) time.Duration { return time.Duration(n-1) * time.Second / releaseRate }

// parked measures waiters that wait for long.
func parked(o options) scenario {
	return scenario{
		section: waitingSection(o),
		name:    "parked waiters",
		metrics: []metric{
			{name: "bytes each, goroutine included", digits: 0, ratio: true, size: true},
			{name: "ms of CPU in a second of waiting", digits: 1},
			{name: "ms to cancel all", digits: 0, ratio: true},
		},
		offered: waitsAndCancels,
		measure: func(c contender) (sample, error) { return park(o, c) },
		apart:   true,
	}
}

// released measures the time until all waiters have gone.
func released(o options) scenario {
	return scenario{
		section: waitingSection(o),
		name:    "released waiters",
		metrics: []metric{
			{name: fmt.Sprintf("let go at %d/s, times the ideal", releaseRate), digits: 3},
			{name: "once all have come", digits: 3},
			{name: "µs of CPU each", digits: 2, ratio: true},
		},
		offered: waits,
		measure: func(c contender) (sample, error) { return release(o, c) },
		apart:   true,
	}
}

// park starts the waiters, measures them while they wait, and cancels all of them together.
func park(o options, c contender) (sample, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// One call a minute: the first leaves immediately, from here, and no other leaves during this
	// run.
	wait, err := c.wait(1.0 / 60)
	if err != nil {
		return sample{}, err
	}
	if err := wait(ctx); err != nil {
		return sample{}, err
	}

	before := memoryInUse()
	var ended sync.WaitGroup
	var granted, failed atomic.Int64
	waiter := func() { // one closure for all, because it is not the waiters' memory
		defer ended.Done()
		switch err := wait(ctx); {
		case err == nil:
			granted.Add(1)
		case !errors.Is(err, context.Canceled):
			failed.Add(1)
		}
	}
	ended.Add(o.Waiters)
	for range o.Waiters {
		go waiter()
	}
	if err := allParked(o.Waiters); err != nil {
		return sample{}, err
	}
	bytes := float64(memoryInUse()-before) / float64(o.Waiters)

	cpu := processTime()
	time.Sleep(o.Idle)
	cpu = processTime() - cpu

	began := time.Now()
	cancel()
	ended.Wait()
	took := time.Since(began)
	if granted.Load() > 0 || failed.Load() > 0 {
		return sample{}, fmt.Errorf("%d waiters were let go, %d failed", granted.Load(), failed.Load())
	}
	return sample{Values: []float64{bytes, milliseconds(cpu) / o.Idle.Seconds(), milliseconds(took)}}, nil
}

// release measures the time from before the first waiter arrives until the last
// has gone.
func release(o options, c contender) (sample, error) {
	ctx := context.Background()
	wait, err := c.wait(releaseRate)
	if err != nil {
		return sample{}, err
	}
	var ended sync.WaitGroup
	var failed, came, gone atomic.Int64
	began, cpu := time.Now(), processTime()
	for range o.Waiters {
		ended.Go(func() {
			came.Add(1)
			if wait(ctx) != nil {
				failed.Add(1)
			}
			gone.Add(1)
		})
	}
	for came.Load() < int64(o.Waiters) {
		time.Sleep(time.Millisecond)
	}
	all, left := time.Now(), o.Waiters-int(gone.Load())
	ended.Wait()
	took, rest := time.Since(began), time.Since(all)
	cpu = processTime() - cpu
	if failed.Load() > 0 {
		return sample{}, fmt.Errorf("%d of %d waiters failed", failed.Load(), o.Waiters)
	}
	return sample{Values: []float64{
		float64(took) / float64(idealRelease(o.Waiters)),
		float64(rest) / float64(idealRelease(max(left, 1)+1)),
		1000 * milliseconds(cpu) / float64(o.Waiters),
	}}, nil
}

// allParked returns when this many goroutines wait and no other is ready to
// run.
func allParked(waiters int) error {
	state := []metrics.Sample{
		{Name: "/sched/goroutines/waiting:goroutines"},
		{Name: "/sched/goroutines/runnable:goroutines"},
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		metrics.Read(state)
		if state[0].Value.Uint64() >= uint64(waiters) && state[1].Value.Uint64() == 0 {
			return nil
		}
	}
	return errors.New("the waiters do not come to rest")
}

// memoryInUse returns the heap and the stacks in use after a collection.
func memoryInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// processTime returns the processor time used so far.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
