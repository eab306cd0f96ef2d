package outboundtest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// API is a strict third-party API to call in tests. It answers a call that keeps
// all its Rules and refuses every other with 429 Too Many Requests. All rules
// count a call or none does: a refused call uses up nothing.
//
// An API is an http.Handler, to be served on a real port, and an
// http.RoundTripper, to be the Transport or the base of an http.Client without any
// network, as in a testing/synctest bubble. Both share its rules and its counts.
//
// A refusal names the broken rules in its text. It carries a Retry-After in whole
// seconds, rounded up, after which a caller that was alone would be admitted;
// where no such time is known, because of AtOnce or because the call costs more
// than a rule ever admits, it carries none.
//
// The zero value refuses nothing. The fields must not be changed after the first
// call. An API is safe for concurrent use and must not be copied. It keeps the
// times of all arrivals and of all admitted calls: 16 bytes each, up to twice that
// while they grow.
type API struct {
	Rules   []Rule        // none: every call is answered
	Latency time.Duration // from the arrival of a call to its answer, refusals included; 0 or less: none
	Next    http.Handler  // answers the admitted calls, after the Latency; nil: 200 with the text "ok"

	arrivals, admitted History

	mu      sync.Mutex // protects the fields below, and orders the arrivals
	started bool       // the next three are set, at the first arrival
	epoch   time.Time  // the origin of the rules' clock, which no step of the wall clock moves
	rules   []Rule
	states  []state // of rules
	report  Report
}

// Report counts what an API has seen so far.
type Report struct {
	Arrivals   int // calls that have reached the API: Admitted + Refused
	Admitted   int // calls that kept all rules
	Refused    int // calls answered with 429
	Answered   int // admitted calls whose answer is complete; the callers of the others gave up, or their handler panicked
	InProgress int // admitted calls that have not ended yet
	Peak       int // most calls in progress at the same time
}

// Report returns the counts at this moment.
func (a *API) Report() Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.report
}

// Arrivals returns the history of all calls, refused ones included, at the times
// at which they reached the API: one unit each, whatever they cost. It goes on
// growing with the calls. Arrivals().Worst(time.Second).Units is the largest number
// of calls that the API saw in any second.
func (a *API) Arrivals() *History { return &a.arrivals }

// Admitted returns the history of the calls that kept all rules, as Arrivals does.
func (a *API) Admitted() *History { return &a.admitted }

// ServeHTTP answers or refuses one call. It panics if a Rule is the zero Rule, or
// if its cost function returns a negative number, an infinity or NaN; such a call
// is not counted.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.answer(w, r, a.arrive(r))
}

// arrive decides on a call, counts it, and returns nil if it is admitted. The
// caller must then call answer with the result.
func (a *API) arrive(r *http.Request) *refusal {
	rules := a.start()
	units := make([]float64, len(rules))
	for i, rule := range rules {
		units[i] = rule.costOf(r) // foreign code: before the lock
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	t := time.Now() // under the lock: arrivals are counted in their order
	now := a.epoch.UnixNano() + int64(t.Sub(a.epoch))
	a.arrivals.Add(t, 1)
	a.report.Arrivals++

	var no *refusal
	for i, s := range a.states {
		if wait := s.wait(now, a.report.InProgress, units[i]); wait != 0 {
			no = no.by(rules[i], wait)
		}
	}
	if no != nil {
		a.report.Refused++
		return no
	}
	for i, s := range a.states {
		s.take(now, units[i])
	}
	a.admitted.Add(t, 1)
	a.report.Admitted++
	a.report.InProgress++
	a.report.Peak = max(a.report.Peak, a.report.InProgress)
	return nil
}

// start makes the states that the rules describe, once, and returns the rules.
func (a *API) start() []Rule {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.started {
		return a.rules
	}
	var states []state
	for i, rule := range a.Rules {
		need(rule.state != nil, "rule %d of an API is the zero Rule: make it with LeakyBucket, FixedWindow, SlidingLog or AtOnce", i)
		states = append(states, rule.state())
	}
	a.rules, a.states = slices.Clone(a.Rules), states
	a.epoch, a.started = time.Now(), true
	return a.rules
}

// answer answers a call, or refuses it if arrive said so, and ends it.
func (a *API) answer(w http.ResponseWriter, r *http.Request, no *refusal) {
	complete := false
	if no == nil {
		defer func() { a.leave(complete) }() // also when Next panics
	}
	if !sleep(r.Context(), a.Latency) {
		// Nobody is likely to read it, but the net/http server would make a 200 of
		// no answer at all.
		http.Error(w, "the caller gave up", http.StatusServiceUnavailable)
		return
	}
	switch {
	case no != nil:
		no.write(w)
	case a.Next != nil:
		a.Next.ServeHTTP(w, r)
	default:
		io.WriteString(w, "ok")
	}
	complete = true
}

func (a *API) leave(complete bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.report.InProgress--
	if complete {
		a.report.Answered++
	}
}

// refusal tells which rules a call broke and when it would break none.
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

func (no *refusal) write(w http.ResponseWriter) {
	if no.wait != unknown {
		seconds := (no.wait + time.Second - 1) / time.Second
		w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	http.Error(w, fmt.Sprintf("too many: the limit is %s", strings.Join(no.broken, ", and ")), http.StatusTooManyRequests)
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
