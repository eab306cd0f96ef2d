package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// releaseRate is how many waiters may go per second when they are let go.
const releaseRate = 100_000

// childEnv tells a copy of this program which waiting it has to measure. Each
// turn has a process of its own: goroutines that have ended leave memory to
// those that come after.
const childEnv = "PEERS_CHILD"

// An errand is what that variable holds, as JSON.
type errand struct {
	Contender string
	Release   bool
	Waiters   int
	Idle      time.Duration
}

func waits(c contender) bool           { return c.wait != nil }
func waitsAndCancels(c contender) bool { return c.wait != nil && c.cancels }
func waitingSection(o options) string  { return strconv.Itoa(o.waiters) + " goroutines that wait" }
func idealRelease(n int) time.Duration { return time.Duration(n-1) * time.Second / releaseRate }

// inOwnProcess measures with a copy of this program that runs the errand.
func inOwnProcess(e errand) func(contender) (sample, error) {
	return func(c contender) (sample, error) {
		e.Contender = c.name
		order, err := json.Marshal(e)
		if err != nil {
			return sample{}, err
		}
		self, err := os.Executable()
		if err != nil {
			return sample{}, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		child := exec.CommandContext(ctx, self)
		child.Env = append(os.Environ(), childEnv+"="+string(order))
		child.Stderr = os.Stderr
		out, err := child.Output()
		if err != nil {
			return sample{}, fmt.Errorf("in its own process: %w", err)
		}
		var s sample
		err = json.Unmarshal(out, &s.values)
		return s, err
	}
}

// parked measures waiters whose turn is far away.
func parked(o options) scenario {
	return scenario{
		section: waitingSection(o),
		name:    "parked waiters",
		metrics: []metric{
			{name: "bytes each, goroutine included", digits: 0, ratio: true},
			{name: "ms of CPU in a second of waiting", digits: 1},
			{name: "ms to cancel all", digits: 0, ratio: true},
		},
		offered: waitsAndCancels,
		measure: inOwnProcess(errand{Waiters: o.waiters, Idle: o.idle}),
	}
}

// released measures how long all take to go.
func released(o options) scenario {
	return scenario{
		section: waitingSection(o),
		name:    "released waiters",
		metrics: []metric{{name: fmt.Sprintf("let go at %d/s, times the ideal", releaseRate), digits: 3}},
		offered: waits,
		measure: inOwnProcess(errand{Release: true, Waiters: o.waiters}),
	}
}

// childMain runs the errand that the environment asks for, if there is one, and
// says whether there was.
func childMain() bool {
	order := os.Getenv(childEnv)
	if order == "" {
		return false
	}
	var e errand
	err := json.Unmarshal([]byte(order), &e)
	if err == nil {
		err = e.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func (e errand) run() error {
	for _, c := range contenders() {
		if c.name != e.Contender || c.wait == nil {
			continue
		}
		measure := e.park
		if e.Release {
			measure = e.release
		}
		values, err := measure(c)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(values)
	}
	return fmt.Errorf("nobody called %q waits", e.Contender)
}

// park lets the waiters wait, looks at them, and cancels them all at once.
func (e errand) park(c contender) ([]float64, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// One a minute: the first goes at once, here, and nobody else in this run.
	wait, err := c.wait(1.0 / 60)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx); err != nil {
		return nil, err
	}

	before := memoryInUse()
	var ended sync.WaitGroup
	var granted, failed atomic.Int64
	waiter := func() { // one closure for all: it is not the waiters' memory
		defer ended.Done()
		switch err := wait(ctx); {
		case err == nil:
			granted.Add(1)
		case !errors.Is(err, context.Canceled):
			failed.Add(1)
		}
	}
	ended.Add(e.Waiters)
	for range e.Waiters {
		go waiter()
	}
	if err := allParked(e.Waiters); err != nil {
		return nil, err
	}
	bytes := float64(memoryInUse()-before) / float64(e.Waiters)

	cpu := processTime()
	time.Sleep(e.Idle)
	cpu = processTime() - cpu

	began := time.Now()
	cancel()
	ended.Wait()
	took := time.Since(began)
	if granted.Load() > 0 || failed.Load() > 0 {
		return nil, fmt.Errorf("%d waiters were let go, %d failed", granted.Load(), failed.Load())
	}
	return []float64{bytes, milliseconds(cpu) / e.Idle.Seconds(), milliseconds(took)}, nil
}

// release times the waiters from before the first has come until the last goes.
func (e errand) release(c contender) ([]float64, error) {
	ctx := context.Background()
	wait, err := c.wait(releaseRate)
	if err != nil {
		return nil, err
	}
	var ended sync.WaitGroup
	var failed atomic.Int64
	began := time.Now()
	for range e.Waiters {
		ended.Go(func() {
			if wait(ctx) != nil {
				failed.Add(1)
			}
		})
	}
	ended.Wait()
	took := time.Since(began)
	if failed.Load() > 0 {
		return nil, fmt.Errorf("%d of %d waiters failed", failed.Load(), e.Waiters)
	}
	return []float64{float64(took) / float64(idealRelease(e.Waiters))}, nil
}

// allParked returns when so many goroutines wait and no other is ready to run.
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
