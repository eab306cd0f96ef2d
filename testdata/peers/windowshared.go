package main

import (
	"fmt"
	"time"
)

// windowSharers lists the contenders with n calls per window in Redis. Ratios refer to
// the first, as in memory.
func windowSharers() []contender {
	return []contender{
		dripfeedWindow(", a leaky limit", oneLeaky),
		dripfeedWindow("", oneWindow),
		dripfeedWindow(", and a leaky limit", windowAndLeaky),
		sortedSet(),
		redisRate(),
	}
}

// windowSharedScenarios lists the scenarios of windows in Redis, in the order of the
// tables.
func windowSharedScenarios(o options, s *server) []scenario {
	return []scenario{
		fullSharedWindow(o, s, o.Window, 1),
		fullSharedWindow(o, s, o.Window, 64),
	}
}

// fullSharedWindow measures an admitted decision while as many calls are in the window as
// are allowed: its time, the server's, and the memory of the bucket.
func fullSharedWindow(o options, s *server, n, goroutines int) scenario {
	return scenario{
		section: fmt.Sprintf("A window of %d in Redis, full; µs", n),
		name:    fmt.Sprintf("window of %d in Redis, %d goroutines", n, goroutines),
		metrics: []metric{
			{name: fmt.Sprintf("elapsed, %d", goroutines), digits: 2, ratio: true},
			{name: fmt.Sprintf("in the command, %d", goroutines), digits: 2, ratio: true},
			{name: fmt.Sprintf("processor, %d", goroutines), digits: 2, ratio: true},
			{name: fmt.Sprintf("bytes, %d", goroutines), digits: 0, ratio: true, size: true},
		},
		offered: func(c contender) bool { return c.sharedWindow != nil },
		measure: func(c contender) (sample, error) {
			window, err := enduring(c, s, n)
			if err != nil {
				return sample{}, err
			}
			rdb, err := s.empty()
			if err != nil {
				return sample{}, err
			}
			take, err := c.sharedWindow(rdb, n, window)
			if err != nil {
				return sample{}, err
			}
			p := newPacer(n, window, goroutines, take)
			p.fill()
			before, err := s.usage(c.command)
			if err != nil {
				return sample{}, err
			}
			ns, calls, allocated := p.run(o.Benchtime)
			after, err := s.usage(c.command)
			if err != nil {
				return sample{}, err
			}
			bytes, err := stored(rdb)
			if err != nil {
				return sample{}, err
			}
			wrong, err := p.outcome.share()
			each := float64(calls)
			return sample{[]float64{
				ns / 1e3, (after.command - before.command) / each, (after.all - before.all) / each, float64(bytes),
			}, wrong, &allocated}, err
		},
	}
}

// enduring returns a window of twice the time that n calls in sequence take. It finds out how long
// a burst takes, and whether the limit holds to its number.
func enduring(c contender, s *server, n int) (time.Duration, error) {
	rdb, err := s.empty()
	if err != nil {
		return 0, err
	}
	take, err := c.sharedWindow(rdb, burstOf(n), ever)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := holdsTo(burstOf(n), take); err != nil {
		return 0, err
	}
	return max(shortWindow, 2*perWindow*time.Since(began)), nil
}
