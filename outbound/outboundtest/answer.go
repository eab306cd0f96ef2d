package outboundtest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// arrival is what the API has decided about a call.
type arrival struct {
	no      *refusal  // nil if admitted
	told    *Decision // nil without a Vendor
	date    string
	latency time.Duration
	watched []watched
}

// watched is a tally that changes when the answer is complete.
type watched struct {
	*tally
	penalty *penalty // of the rule when the call arrived; nil for a rule that counts calls in progress by key
}

// watch notes the tallies that change when the answer is complete, and counts an
// admitted call as in progress. The caller holds the lock.
func (arr *arrival) watch(set *ruleSet, charges []charge) {
	for i, c := range set.counters {
		ch := charges[i]
		if !ch.counted {
			continue
		}
		switch s := ch.tally.state.(type) {
		case *penalty:
			arr.watched = append(arr.watched, watched{tally: ch.tally, penalty: s})
		case inFlight:
			if c.byKey != nil && arr.no == nil {
				ch.tally.inProgress++
				arr.watched = append(arr.watched, watched{tally: ch.tally})
			}
		}
	}
}

// answer answers a call, or refuses it if arrive said so, and ends it.
func (a *API) answer(w http.ResponseWriter, r *http.Request, arr arrival) {
	complete := false
	if arr.watched != nil {
		w = &statusWriter{ResponseWriter: w, status: http.StatusOK}
	}
	if arr.no == nil || arr.watched != nil {
		defer func() { a.leave(w, arr, complete) }() // also when Next panics
	}
	w.Header().Set("Date", arr.date)
	if !sleep(r.Context(), arr.latency) {
		// The caller has gone and will hardly read this. But of no answer at all the
		// net/http server would make a 200.
		http.Error(w, "the caller gave up", http.StatusServiceUnavailable)
		return
	}
	next := a.Next
	switch {
	case arr.no != nil:
		next = arr.no
	case next == nil:
		next = plain{}
	}
	if a.Vendor != nil {
		a.Vendor(w, r, arr.told, next)
	} else {
		next.ServeHTTP(w, r)
	}
	complete = true
}

func (a *API) leave(w http.ResponseWriter, arr arrival, complete bool) {
	var guilty []bool
	if complete { // a call without an answer does not count
		for _, t := range arr.watched {
			guilty = append(guilty, t.penalty != nil && t.penalty.isOffence(arr.no != nil, w))
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, now := a.now()
	for i, t := range arr.watched {
		if t.penalty == nil {
			t.inProgress--
		} else if p, ok := t.state.(*penalty); ok && complete && guilty[i] {
			p.offend(now)
		}
	}
	if arr.no != nil {
		return
	}
	a.report.InProgress--
	if complete {
		a.report.Answered++
	}
}

// plain is the answer to an admitted call without a Next.
type plain struct{}

func (plain) ServeHTTP(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (s *statusWriter) WriteHeader(status int) {
	if status >= 200 { // not an interim answer
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController find what else the server's writer can do.
func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// refusal is the rules that a call broke, and when it would keep all.
type refusal struct {
	broken []string
	wait   time.Duration // the longest of the broken rules', or unknown
}

// by adds a broken rule to a refusal, or to none.
func (no *refusal) by(rule Rule, wait time.Duration) *refusal {
	if no == nil {
		return &refusal{broken: []string{rule.String()}, wait: wait}
	}
	no.broken = append(no.broken, rule.String())
	if wait == unknown || no.wait == unknown {
		no.wait = unknown
	} else {
		no.wait = max(no.wait, wait)
	}
	return no
}

// ServeHTTP writes the plain refusal.
func (no *refusal) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if no.wait != unknown {
		w.Header().Set("Retry-After", wholeSeconds(no.wait))
	}
	http.Error(w, fmt.Sprintf("too many: the limit is %s", strings.Join(no.broken, ", and ")), http.StatusTooManyRequests)
}

// wholeSeconds returns a time in seconds, rounded up.
func wholeSeconds(d time.Duration) string {
	seconds := d / time.Second
	if d%time.Second > 0 {
		seconds++
	}
	return strconv.FormatInt(int64(seconds), 10)
}

// sleep waits for d and reports whether it has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
