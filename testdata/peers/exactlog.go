package main

import (
	"sync"
	"time"
)

// exactLog is a moving window as people write it: the times of the calls of the past
// window, under a mutex.
type exactLog struct {
	mu     sync.Mutex
	times  []time.Time
	n      int
	window time.Duration
}

func (l *exactLog) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	begin := now.Add(-l.window)
	gone := 0
	for gone < len(l.times) && !l.times[gone].After(begin) {
		gone++
	}
	l.times = l.times[gone:]
	if len(l.times) >= l.n {
		return false
	}
	l.times = append(l.times, now)
	return true
}

func exactLogs() contender {
	return contender{
		name: "exact log",
		peer: true,
		window: func(n int, window time.Duration) (func() bool, error) {
			return (&exactLog{n: n, window: window}).take, nil
		},
		alone: true,
	}
}
