package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// calls is how many calls each way makes. Their line fits in 60 columns.
const calls = 40

// What became of a call, as the screen shows it.
const (
	unmade       = ' '
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

	mu      sync.Mutex           // protects the fields below
	cells   [calls]byte          // what became of each call
	began   [calls]time.Duration // when each call was made
	ended   [calls]time.Duration // when it was answered or refused, or failed
	failure error                // the first failure of a call
}

func newWay(name, shows, url string, client *http.Client) *way {
	w := &way{name: name, shows: shows, url: url, client: client}
	copy(w.cells[:], bytes.Repeat([]byte{unmade}, calls))
	return w
}

// run makes all calls, one every so often, and returns when each has its answer or ctx is
// done.
func (w *way) run(ctx context.Context, every time.Duration) {
	start := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	for i := range calls {
		all.Go(func() {
			w.set(i, waiting, time.Since(start), nil)
			outcome, err := w.call(ctx)
			w.set(i, outcome, time.Since(start), err)
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// call makes one call and returns what became of it.
func (w *way) call(ctx context.Context) (outcome byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url, nil)
	if err != nil {
		return failed, err
	}
	resp, err := w.client.Do(req)
	var full *outbound.ThrottledError
	switch {
	case errors.As(err, &full):
		return refusedByUs, nil // full.RetryAfter says when to come back
	case ctx.Err() != nil:
		return waiting, nil // interrupted
	case err != nil:
		return failed, withoutURL(err)
	}
	defer resp.Body.Close()
	// Read to its end, so that the next call can use the connection.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil && ctx.Err() == nil {
		return failed, err
	}
	if resp.StatusCode == http.StatusTooManyRequests {
		return refusedByAPI, nil
	}
	return answered, nil
}

func (w *way) set(i int, outcome byte, at time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cells[i] == unmade {
		w.began[i] = at
	}
	if outcome != waiting {
		w.ended[i] = at
	}
	w.cells[i] = outcome
	if w.failure == nil {
		w.failure = err
	}
}

// line shows every call as one character.
func (w *way) line() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.cells[:])
}

// tally is a row of the table.
type tally struct {
	made, answered, refusedByAPI, refusedByUs, failed int

	took    time.Duration
	failure error
}

func (w *way) tally() tally {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := func(outcome byte) int { return bytes.Count(w.cells[:], []byte{outcome}) }
	return tally{
		made:         calls - count(unmade),
		answered:     count(answered),
		refusedByAPI: count(refusedByAPI),
		refusedByUs:  count(refusedByUs),
		failed:       count(failed),
		took:         slices.Max(w.ended[:]),
		failure:      w.failure,
	}
}

// used is the part of the quota that was used: the calls answered, divided by those of an
// even flow of rate calls per second in the same time.
func (t tally) used(rate float64) float64 {
	return float64(t.answered) / (1 + rate*t.took.Seconds())
}

// withoutURL removes the URL from an error, because it may carry a token.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
