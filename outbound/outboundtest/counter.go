package outboundtest

import (
	"net/http"
	"time"
)

// counter is what an API has counted for one of its rules.
type counter struct {
	rule  Rule
	all   *tally            // of all calls; nil if the rule counts by key
	byKey map[string]*tally // nil unless the rule counts by key
}

// tally is the count of one key of a rule. It stays the same when SetRules replaces the
// rule, so that a call in progress finds it when it ends.
type tally struct {
	state      state
	inProgress int // calls of this key, of a rule that counts by key
}

// charge is what one call asks of one rule.
type charge struct {
	counted    bool // the rule counts the call
	key        string
	cost, used float64 // units that must fit, and units to count then
	tally      *tally  // where; nil unless counted
	wait       time.Duration
}

func newCounter(r Rule) *counter {
	if r.key != nil {
		return &counter{rule: r, byKey: make(map[string]*tally)}
	}
	return &counter{rule: r, all: &tally{state: r.state()}}
}

func (c *counter) tally(key string) *tally {
	if c.byKey == nil {
		return c.all
	}
	t := c.byKey[key]
	if t == nil {
		t = &tally{state: c.rule.state()}
		c.byKey[key] = t
	}
	return t
}

// inProgress returns how many calls in progress the rule counts together. all is how
// many there are of any key.
func (c *counter) inProgress(t *tally, all int) int {
	if c.byKey == nil {
		return all
	}
	return t.inProgress
}

// adopt takes over the counts of another counter if both rules limit the same unit in
// the same way. It reports whether they do.
func (c *counter) adopt(old *counter, now int64) bool {
	if c.rule.unit != old.rule.unit || (c.byKey == nil) != (old.byKey == nil) || !c.rule.state().adopt(old.rule.state(), now) {
		return false
	}
	renew := func(t *tally) {
		s := c.rule.state()
		s.adopt(t.state, now)
		t.state = s
	}
	c.all, c.byKey = old.all, old.byKey
	if c.all != nil {
		renew(c.all)
	}
	for _, t := range c.byKey {
		renew(t)
	}
	return true
}

// ruleSet is the rules of an API and their counts. When the rules change the API gets another set,
// so its address shows whether they have changed.
type ruleSet struct {
	rules    []Rule
	counters []*counter // of rules; protected by API.mu
}

func newRuleSet(rules []Rule) *ruleSet {
	set := &ruleSet{}
	for i, r := range rules {
		need(r.state != nil, "rule %d of an API is the zero Rule: make it with LeakyBucket, FixedWindow, FirstCallWindow, SlidingLog, CalendarWindow, InFlight or Penalty", i)
		set.rules = append(set.rules, r)
		set.counters = append(set.counters, newCounter(r))
	}
	return set
}

// charges asks what a call costs. It runs foreign code, so not under the lock.
func (s *ruleSet) charges(r *http.Request) []charge {
	charges := make([]charge, len(s.rules))
	for i, rule := range s.rules {
		charges[i] = rule.chargeOf(r)
	}
	return charges
}

// adopt takes over the counts of the set before. Each rule takes those of the first old
// rule of its kind that no other rule has taken.
func (s *ruleSet) adopt(old *ruleSet, now int64) {
	taken := make([]bool, len(old.counters))
	for _, c := range s.counters {
		for i, o := range old.counters {
			if !taken[i] && c.adopt(o, now) {
				taken[i] = true
				break
			}
		}
	}
}
