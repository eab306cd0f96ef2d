package rollouttest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// fits reports whether some limits in force since version v may admit a call of this cost.
func (c *changing) fits(k outbound.Cost, v int) (some, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all = true
	for _, in := range c.inForce[max(0, v):] {
		fits := true
		first := -1
		for i := range in.law {
			l := &in.law[i]
			if l.Name == "\x00none" {
				continue
			}
			if first < 0 || int(l.Unit) < first {
				first = int(l.Unit)
			}
			fits = fits && l.Takes(max(0, k[l.Unit])) <= l.Capacity
		}
		fits = fits && (first < 0 || k[first] != 0)
		some, all = some || fits, all && fits
	}
	return some, all
}

// judge checks the error of an action on a call of this cost, by the limits since version v.
func (c *changing) judge(what string, err error, k outbound.Cost, v int) {
	bad, cost := errors.AsType[*outbound.CostError](err)
	full, throttled := errors.AsType[*outbound.ThrottledError](err)
	some, all := c.fits(k, v)
	if c.Remembers || c.lined.Load() > 0 { // other requests may be noted before this one
		some, all = true, false
	}
	switch {
	case err == nil && !some && !c.slots: // calls in flight alone rely on a reply for a while
		c.errorf("%s of %v is admitted by limits that it does not fit", what, k)
	case err == nil, errors.Is(err, queue.ErrFull):
	case !throttled && !c.Exact && refused(err): // a machine that stalls, which windows of some milliseconds meet more often
	case cost && all:
		c.errorf("%s: %v, and it fits", what, bad)
	case cost:
	case throttled && (full.RetryAfter < 0 || full.RetryAfter > 24*time.Hour):
		c.errorf("%s: retry after %v", what, full.RetryAfter)
	case throttled && !some && what != "wait" && !c.Remembers && !(c.slots && strings.HasSuffix(full.Limit, "in flight")): // slots come first
		c.errorf("%s of %v is throttled by limits that it does not fit: %v", what, k, err)
	case !throttled:
		c.errorf("%s: %v", what, err)
	}
}

// lawful checks what has left.
func (c *changing) lawful() {
	c.mu.Lock()
	defer c.mu.Unlock()
	type id struct {
		name string
		unit int8
		kind store.Kind
	}
	of := func(l *store.Limit) id { return id{l.Name, l.Unit, l.Kind} }
	index := func(v int, x id) int {
		return slices.IndexFunc(c.inForce[v].law, func(l store.Limit) bool { return of(&l) == x })
	}
	for from := range c.inForce {
		for i := range c.inForce[from].law {
			l := c.inForce[from].law[i]
			most, shortest := l, l.Window
			c.check(&l, l.Window, from, from)
			if l.Unnamed || from > 0 && index(from-1, of(&l)) >= 0 {
				continue // not where it begins
			}
			to := from
			for to+1 < len(c.inForce) {
				j := index(to+1, of(&l))
				if j < 0 {
					break
				}
				next := &c.inForce[to+1].law[j]
				most.Capacity, most.Rate, shortest = max(most.Capacity, next.Capacity), max(most.Rate, next.Rate), min(shortest, next.Window)
				to++
			}
			c.check(&most, shortest, from, to)
		}
	}
}

// check checks what was booked by some versions.
func (c *changing) check(l *store.Limit, window time.Duration, from, to int) {
	var h outboundtest.History
	for _, d := range c.left {
		if d.version < from || d.version > to || d.waited && (from > 0 || to < len(c.inForce)-1) {
			continue // a call that has waited may have been booked by other limits
		}
		h.Add(d.at, d.used[l.Unit])
	}
	early := 20 * time.Microsecond // as a step may count from, which the conformance test allows
	if c.Exact && c.Remembers {    // rows: a process estimates their clock low, by a 5,000th of the time since its last request
		early += 2 * time.Millisecond
	}
	var err error
	switch {
	case l.Name == "\x00none":
	case l.Kind == store.Leaky:
		err = h.Check(l.Capacity, l.Rate, l.Capacity*1e-6+l.Rate*early.Seconds())
	case l.Kind == store.Window:
		err = h.CheckWindow(l.Capacity*(1+1e-6), window-early)
	case l.Kind == store.Fixed:
		err = h.CheckWindow(2*l.Capacity*(1+1e-6), window)
	case l.Kind == store.Hourly:
		err = h.CheckCalendar(l.Capacity*(1+1e-6), outboundtest.Hour, time.UTC, 0)
	}
	if err != nil && !c.failed {
		c.failed = true
		c.Errorf("DRIPFEED_SEED=%d: %v, versions %d to %d of %d: %v\n%q", c.seed, l, from, to, len(c.inForce), err, c.actions)
	}
}
