package outbound

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/slots"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// checkLimits validates the limits of a bucket, which may be shared, and copies them.
func checkLimits(bucket string, limits []Limit, shared bool) ([]Limit, error) {
	if len(limits) == 0 || len(limits) > maxLimits {
		return nil, &LimitError{Key: bucket, Reason: fmt.Sprintf("a bucket has 1 to %d limits, not %d", maxLimits, len(limits))}
	}
	own, inFlight := slices.Clone(limits), 0
	for i := range own {
		if flaw := own[i].check(); flaw != "" {
			return nil, &LimitError{Key: bucket, Limit: own[i], Reason: flaw}
		}
		if own[i].inFlight {
			if inFlight++; shared && own[i].n != 0 {
				return nil, &LimitError{Key: bucket, Limit: own[i], Reason: adaptiveHere}
			}
		}
	}
	if inFlight > 1 {
		return nil, &LimitError{Key: bucket, Reason: "a bucket has at most one InFlight"}
	}
	for i := range own {
		l := &own[i]
		if k := slices.IndexFunc(own[:i], l.same); k >= 0 {
			return nil, &LimitError{Key: bucket, Limit: *l, Reason: "two limits of one unit, " + quote(own[k].label()) + " and " + quote(l.label()) + ", need different names: name them, or leave one out"}
		}
	}
	return own, nil
}

// same reports whether both limits are one to a key and to a reader of its metrics.
func (l *Limit) same(m Limit) bool {
	alike := l.Name == "" && m.Name == "" && l.kind == m.kind && l.shape() == m.shape()
	return l.Unit == m.Unit && l.inFlight == m.inFlight && (alike || l.label() == m.label())
}

// lawOf returns limits as stores know them, except for an InFlight, which package store does not
// count.
func lawOf(limits []Limit) (law []store.Limit) {
	for i := range limits {
		if l := &limits[i]; !l.inFlight {
			law = append(law, l.law())
		}
	}
	return law
}

// listOf returns the limits as callers know them.
func listOf(set *key.Limits) []Limit {
	law := set.Counts()
	all := make([]Limit, len(law), maxLimits)
	for i := range all {
		all[i] = limitOf(&law[i])
	}
	return all
}

// check returns why a call of this cost, which keeps a fraction of each limit free, can never be
// admitted by these limits of a bucket, or nil.
func check(set *key.Limits, bucket string, c *Cost, headroom float64) error {
	if !c.valid() {
		return costError(bucket, nil, c, ErrInvalid)
	}
	bad, lacks := set.Misfit((*reports.Numbers)(c), headroom)
	switch {
	case bad == nil:
		return nil
	case lacks:
		return costError(bucket, bad, c, ErrInvalid)
	}
	e := costError(bucket, bad, c, ErrTooLarge)
	e.Headroom = bad.Headroom(headroom)
	return e
}

//go:noinline
func costError(bucket string, l *store.Limit, c *Cost, err error) *CostError { // apart, so that bad costs need no stack of good ones
	e := &CostError{Key: bucket, Cost: *c, Err: err}
	if l != nil {
		e.Limit = limitOf(l)
	}
	return e
}

// inFlightOf returns the InFlight among limits, or nil.
func inFlightOf(limits []Limit) *slots.Limit {
	if i := slices.IndexFunc(limits, func(l Limit) bool { return l.inFlight }); i >= 0 {
		l := &limits[i]
		return &slots.Limit{Most: int(l.Capacity), Ceiling: int(l.n), Lease: cmp.Or(l.window, store.DefaultLease), Unit: l.Unit, Name: l.Name, Version: l.Version}
	}
	return nil
}

// slotsLimit returns the InFlight of slots as callers know it.
func slotsLimit(l *slots.Limit) Limit {
	m := Limit{Capacity: float64(l.Most), n: float64(l.Ceiling), Unit: l.Unit, Name: l.Name, Version: l.Version, inFlight: true}
	if l.Lease != store.DefaultLease {
		m.window = l.Lease
	}
	return m.intact()
}

// with returns the limits with an InFlight behind them, if there is one.
func with(limits []Limit, inFlight *slots.Limit) []Limit {
	if inFlight == nil {
		return limits
	}
	return append(limits, slotsLimit(inFlight))
}
