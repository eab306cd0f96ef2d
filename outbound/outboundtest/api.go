package outboundtest

import (
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// API is a strict third-party API to call in tests. It answers a call that keeps all its Rules and
// refuses every other with 429 Too Many Requests. Either all rules count a call, or none: a refused
// call uses no units.
//
// An API is an http.Handler for a real port, and an http.RoundTripper for an http.Client without a
// network, as in a testing/synctest bubble. Both share its rules and its counts.
//
// A refusal names the broken rules in its text. Its Retry-After, in whole seconds, rounded up, is
// when the API would admit the call if no other comes before. It has none if that time is unknown:
// under InFlight, and for a cost above a rule's limit. With a Vendor the API answers as that vendor
// does instead: GitHub, ShopifyREST, ShopifyGraphQL, Discord, OpenAI, Anthropic, Stripe and
// RateLimitFields return such APIs.
//
// An answer describes the API when the call arrived, Date included, and reaches the caller after
// the Latency.
//
// The zero value admits every call. The fields must not be changed after the first call; SetRules
// changes the rules. An API is safe for concurrent use and must not be copied. It keeps the times
// of all arrivals and of all admitted calls: 16 bytes each, up to twice that while they grow.
type API struct {
	Rules   []Rule        // at the start
	Latency time.Duration // from the arrival of a call to its answer, refusals included
	Jitter  time.Duration // the most that a call takes beyond the Latency, drawn alike in every API
	Skew    time.Duration // how far the API's clock is ahead of the real one, at most 100 years
	Next    http.Handler  // answers the admitted calls, after the Latency; nil answers 200 with the text "ok"
	Vendor  Vendor        // writes the vendor's answers; nil refuses with 429, a Retry-After and a text

	arrivals, admitted History

	mu     sync.Mutex // protects the fields below, and orders the arrivals
	set    *ruleSet   // this and the next are set at the first arrival
	epoch  time.Time  // the origin of the API's clock, which no step of the wall clock moves
	report Report
	random rand.PCG // of the Jitter
	dated  int64    // the second, since the Unix epoch, for which date was made
	date   string
}

// Report counts what an API has seen so far.
type Report struct {
	Arrivals   int // calls that have reached the API: Admitted + Refused
	Admitted   int // calls that kept all rules
	Refused    int // calls that broke a rule: answered with 429, or as the Vendor does
	Answered   int // admitted calls with a complete answer; the rest was given up, or panicked
	InProgress int // admitted calls that have not ended yet
	Peak       int // most calls in progress at the same time
}

// Report returns the counts at this moment.
func (a *API) Report() Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.report
}

// Arrivals returns the history of all calls, refused ones included, at their arrival: one unit
// each, even if they cost more. Later calls are added to the same history.
// Arrivals().Worst(time.Second).Units is the largest number of calls that the API saw in any
// second.
func (a *API) Arrivals() *History { return &a.arrivals }

// Admitted returns the history of the calls that kept all rules, as Arrivals does.
func (a *API) Admitted() *History { return &a.admitted }

// SetRules replaces the rules while the API runs, for all calls that arrive later. A new rule takes
// over the count, in units, of the first old rule of the same kind and unit. The window or the
// period must be the same, too, except for LeakyBucket and InFlight. A rule without a match starts
// empty. So a count may exceed a lower limit at first: the rule then admits no call until enough
// has leaked. Rules by key take over the keys of rules by key. SetRules panics if one of the rules
// is the zero Rule, and then changes nothing.
func (a *API) SetRules(rules ...Rule) {
	set := newRuleSet(rules)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.set == nil {
		a.begin(set)
		return
	}
	_, now := a.now()
	set.adopt(a.set, now)
	a.set = set
}

// ServeHTTP answers or refuses one call. It panics if a Rule is the zero Rule, if its cost function
// returns a negative number, an infinity or NaN, or if the Skew is above 100 years.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.answer(w, r, a.arrive(r))
}

// arrive decides on a call and counts it. The caller must then call answer with the
// result.
func (a *API) arrive(r *http.Request) arrival {
	set, charges := a.lock(r)
	defer a.mu.Unlock()
	t, now := a.now() // under the lock, so that the API counts arrivals in their order
	a.arrivals.Add(t, 1)
	a.report.Arrivals++

	var arr arrival
	for i, c := range set.counters {
		ch := &charges[i]
		if !ch.counted {
			continue
		}
		ch.tally = c.tally(ch.key)
		if ch.wait = ch.tally.state.wait(now, c.inProgress(ch.tally, a.report.InProgress), ch.cost); ch.wait != 0 {
			arr.no = arr.no.by(c.rule, ch.wait)
		}
	}
	if arr.no != nil {
		a.report.Refused++
	} else {
		for _, ch := range charges {
			if ch.counted {
				ch.tally.state.take(now, ch.used)
			}
		}
		a.admitted.Add(t, 1)
		a.report.Admitted++
		a.report.InProgress++
		a.report.Peak = max(a.report.Peak, a.report.InProgress)
	}
	arr.watch(set, charges)
	arr.latency, arr.date = a.delay(), a.dateOf(now)
	if a.Vendor != nil {
		arr.told = a.decide(set, charges, arr.no, now)
	}
	return arr
}

// lock asks what a call costs, which is foreign code and runs without the lock. Then it
// takes the lock, with the rules still the same.
func (a *API) lock(r *http.Request) (*ruleSet, []charge) {
	for {
		set := a.rules()
		charges := set.charges(r)
		a.mu.Lock()
		if a.set == set {
			return set, charges
		}
		a.mu.Unlock() // SetRules came in between
	}
}

// rules returns the rules in force, and makes the counts for the first ones.
func (a *API) rules() *ruleSet {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.set == nil {
		a.begin(newRuleSet(a.Rules))
	}
	return a.set
}

// begin starts the clock. The caller holds the lock.
func (a *API) begin(set *ruleSet) {
	need(a.Skew >= -longest && a.Skew <= longest, "a skew of %v: must be at most 100 years", a.Skew)
	a.set, a.epoch = set, time.Now()
}

// now returns the time, and what the API's clock shows then. The caller holds the lock.
func (a *API) now() (t time.Time, now int64) {
	t = time.Now()
	return t, a.epoch.UnixNano() + int64(t.Sub(a.epoch)+a.Skew)
}

// delay draws the time from a call's arrival to its answer. The caller holds the lock.
func (a *API) delay() time.Duration {
	d := max(0, a.Latency)
	if a.Jitter > 0 {
		d += time.Duration(a.random.Uint64() % (uint64(a.Jitter) + 1)) // a tiny bias does no harm
	}
	if d < 0 {
		return math.MaxInt64
	}
	return d
}

// dateOf returns the Date of an answer. The caller holds the lock.
func (a *API) dateOf(now int64) string {
	shown := time.Unix(0, now).UTC()
	if second := shown.Unix(); a.date == "" || second != a.dated {
		a.dated, a.date = second, shown.Format(http.TimeFormat)
	}
	return a.date
}

// decide describes the decision about a call. The caller holds the lock.
func (a *API) decide(set *ruleSet, charges []charge, no *refusal, now int64) *Decision {
	d := &Decision{At: time.Unix(0, now).UTC(), Refused: no != nil}
	if no != nil {
		d.RetryAfter = max(0, no.wait) // unknown is below 0
	}
	for i, c := range set.counters {
		ch := charges[i]
		if !ch.counted {
			continue
		}
		if _, ok := ch.tally.state.(*penalty); ok && ch.wait == 0 {
			continue
		}
		units, reset := ch.tally.state.count(now, c.inProgress(ch.tally, a.report.InProgress))
		window := c.rule.window
		if s, ok := ch.tally.state.(*calendarWindow); ok {
			window = s.length()
		}
		d.Counts = append(d.Counts, Count{
			Unit: c.rule.unit, Key: ch.key, Window: window, Limit: c.rule.limit,
			Remaining: remaining(c.rule.limit, units), Reset: reset,
			Cost: ch.cost, Used: ch.used,
			Broken: ch.wait != 0, RetryAfter: max(0, ch.wait),
		})
	}
	return d
}
