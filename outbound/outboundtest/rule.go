package outboundtest

import (
	"fmt"
	"math"
	"net/http"
	"time"
)

// longest bounds windows, and the time in which a full bucket drains, so that instants in
// nanoseconds cannot overflow.
const longest = 100 * 365 * 24 * time.Hour

// sharp is the rounding tolerance of the rules, as a share of the limit. It is smaller
// than the tolerance of History.Check, so that all calls that a LeakyBucket admits pass
// Check.
const sharp = 1e-10

// Rule is one limit that an API enforces. LeakyBucket, FixedWindow, FirstCallWindow, SlidingLog,
// CalendarWindow, InFlight and Penalty make them. They panic at an invalid number. A Rule is a
// description without state: the same one may serve several APIs, each with a count of its own.
//
// Rules are exact to the nanosecond: they admit a call exactly one window later. Sums of fractional
// costs may exceed their limit by 1e-10 of it, for rounding. In a LeakyBucket that is 1e-10 of the
// time in which a full one drains, below a nanosecond if that is at most 10 s.
type Rule struct {
	name   string // follows the number: "in any 1s"
	limit  float64
	unit   string
	window time.Duration               // in which the whole limit is free again; 0 for InFlight and CalendarWindow
	cost   func(*http.Request) float64 // 1 if nil
	used   func(*http.Request) float64 // cost if nil
	key    func(*http.Request) string  // one count if nil
	state  func() state                // nil in the zero Rule
}

// LeakyBucket holds up to capacity units, and leaks leakRate units per second: at most capacity +
// leakRate*W units in any interval of length W. Both must be above 0 and finite, and a full bucket
// must drain within 100 years; otherwise it panics.
func LeakyBucket(capacity, leakRate float64) Rule {
	needPositive("capacity", capacity)
	needPositive("leak rate", leakRate)
	need(capacity/leakRate <= longest.Seconds(),
		"capacity %g and leak rate %g per second: a full bucket must run dry within 100 years", capacity, leakRate)
	window := time.Duration(math.Round(capacity / leakRate * 1e9))
	return newRule(capacity, window, fmt.Sprintf("in a bucket that leaks %g per second", leakRate), func() state {
		return &leakyBucket{brim: capacity + capacity*sharp, leakRate: leakRate}
	})
}

// FixedWindow admits up to n units in each window of the clock. Windows start at whole multiples of
// their length since the Unix epoch: those of an hour at each full hour of UTC. Up to 2n units may
// follow each other closely where two windows meet. n must be above 0 and finite, and the window
// above 0 and at most 100 years; otherwise it panics.
func FixedWindow(n float64, window time.Duration) Rule {
	needWindow(n, window)
	return newRule(n, window, fmt.Sprintf("in each %v of the clock", window), func() state {
		return &fixedWindow{limit: n + n*sharp, window: int64(window)}
	})
}

// FirstCallWindow admits up to n units in each window, and a window starts with the first call that
// it admits after the last one has ended. n must be above 0 and finite, and the window above 0 and
// at most 100 years; otherwise it panics.
func FirstCallWindow(n float64, window time.Duration) Rule {
	needWindow(n, window)
	return newRule(n, window, fmt.Sprintf("in %v from the first call on", window), func() state {
		return &fixedWindow{limit: n + n*sharp, window: int64(window), fromFirst: true}
	})
}

// SlidingLog admits up to n units in any window of the given length, wherever it starts. It
// remembers each call for one window. n must be above 0 and finite, and the window above 0 and at
// most 100 years; otherwise it panics.
func SlidingLog(n float64, window time.Duration) Rule {
	needWindow(n, window)
	return newRule(n, window, fmt.Sprintf("in any %v", window), func() state {
		return &slidingLog{limit: n + n*sharp, window: int64(window)}
	})
}

// InFlight admits a call while fewer than n are in progress. Costs do not matter. A call is in
// progress from its arrival until its answer is complete, so the rule needs a Latency or a slow
// Next. Its refusals have no Retry-After, because the end of a call is unknown. InFlight panics if
// n is below 1.
func InFlight(n int) Rule {
	need(n >= 1, "%d calls at once: must be at least 1", n)
	return newRule(float64(n), 0, "in progress", func() state { return inFlight(n) })
}

// Of returns the rule for another unit than calls: cost returns how many units a request
// takes, and refusals call them name, as in "tokens". A nil cost takes 1. The API calls
// cost once for each arrival, before it decides and possibly from several goroutines,
// and once more if SetRules replaces the rules meanwhile. It panics if the cost is
// negative, infinite or NaN. cost must leave the request as it is and its body unread. A
// request that costs 0 passes the rule. The API refuses a request that costs more than
// the rule ever admits, without a Retry-After. Of panics if it gets a cost for InFlight or
// Penalty, which count calls.
func (r Rule) Of(name string, cost func(*http.Request) float64) Rule {
	kind := r.countsCalls()
	need(cost == nil || kind == "", "%s counts calls and cannot count %q", kind, name)
	r.unit, r.cost = name, cost
	return r
}

// Settle returns the rule for calls that turn out to use less or more than they asked for. It
// admits a call if the cost of Of fits, and then immediately counts the units that used returns.
// The demands on the cost of Of hold for used as well. A nil used counts the cost. Settle panics
// for InFlight and Penalty.
func (r Rule) Settle(used func(*http.Request) float64) Rule {
	kind := r.countsCalls()
	need(used == nil || kind == "", "%s counts calls, which cannot be settled", kind)
	r.used = used
	return r
}

// By returns the rule with a count of its own for each key, as in a limit per user: every key has
// the whole limit. A request with the key "" passes the rule, which does not count it. The API
// calls key as it calls the cost of Of. It never forgets a key, which takes about 100 bytes. A nil
// key is one count for all.
func (r Rule) By(key func(*http.Request) string) Rule {
	r.key = key
	return r
}

// String returns the rule in words: "10 calls in any 1s".
func (r Rule) String() string {
	if r.state == nil {
		return "no rule"
	}
	return fmt.Sprintf("%g %s %s", r.limit, r.unit, r.name)
}

func newRule(limit float64, window time.Duration, name string, state func() state) Rule {
	return Rule{limit: limit, window: window, name: name, unit: "calls", state: state}
}

// countsCalls returns the name of a rule that counts calls and no costs, and "" for any
// other rule.
func (r Rule) countsCalls() string {
	if r.state != nil {
		switch r.state().(type) {
		case inFlight:
			return "InFlight"
		case *penalty:
			return "Penalty"
		}
	}
	return ""
}

// chargeOf returns what the rule charges for the request.
func (r Rule) chargeOf(req *http.Request) charge {
	c := charge{counted: true, cost: 1, used: 1}
	if r.key != nil {
		c.key = r.key(req)
		if c.key == "" {
			return charge{}
		}
	}
	if r.cost != nil {
		c.cost = r.units(r.cost(req))
		c.used = c.cost
	}
	if r.used != nil {
		c.used = r.units(r.used(req))
	}
	return c
}

func (r Rule) units(n float64) float64 {
	need(n >= 0 && !math.IsInf(n, 1), "a request costs %g %s: must be finite and at least 0", n, r.unit)
	return n
}

func needPositive(what string, x float64) {
	need(x > 0 && !math.IsInf(x, 1), "%s %g: must be finite and above 0", what, x)
}

func needWindow(n float64, window time.Duration) {
	needPositive("limit of a window", n)
	need(window > 0 && window <= longest, "a window of %v: must be above 0 and at most 100 years", window)
}
