package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/outbound"
)

// requests is how many calls each way makes. Their line fits in 60 columns.
const requests = 40

// The result of a call, as the screen shows it.
const (
	unmade       = 0
	waiting      = '.'
	answered     = '+'
	refusedByAPI = 'X'
	refusedByUs  = '-'
	failed       = '!'
)

// way is one way to call an API.
type way struct {
	name   string
	shows  string // what its row of the table shows
	url    string
	client *http.Client

	mu      sync.Mutex              // protects the fields below
	cells   [requests]byte          // the result of each call
	began   [requests]time.Duration // when each call was made
	ended   [requests]time.Duration // when it was answered or refused, or failed
	failure error                   // the first failure of a call
}

// run makes all calls, one every so often, and returns when each has its answer or ctx is
// done.
func (w *way) run(ctx context.Context, every time.Duration) error {
	start := time.Now()
	return calls.Together(requests, func(i int) error {
		if calls.Sleep(ctx, time.Duration(i)*every) {
			w.set(i, waiting, time.Since(start), nil)
			outcome, err := w.call(ctx)
			w.set(i, outcome, time.Since(start), err)
		}
		return nil
	})
}

// call makes one call and returns its result.
func (w *way) call(ctx context.Context) (outcome byte, err error) {
	resp, err := calls.Get(ctx, w.client, w.url)
	switch {
	case errors.Is(err, outbound.ErrThrottled):
		return refusedByUs, nil // a ThrottledError says when to retry
	case ctx.Err() != nil:
		return waiting, nil // interrupted
	case err != nil:
		return failed, err
	case resp.StatusCode == http.StatusTooManyRequests:
		return refusedByAPI, nil
	}
	return answered, nil
}

func (w *way) set(i int, outcome byte, at time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if outcome == waiting && w.cells[i] == unmade {
		w.began[i] = at
	} else if outcome != waiting {
		w.ended[i] = at
	}
	w.cells[i] = outcome
	w.failure = cmp.Or(w.failure, err)
}

// line shows every call as one character, and a blank for one that is not made yet.
func (w *way) line() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.ReplaceAll(string(w.cells[:]), "\x00", " ")
}

func (w *way) count(outcome byte) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Count(w.cells[:], []byte{outcome})
}

// took is how long the calls took.
func (w *way) took() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Max(w.ended[:])
}
