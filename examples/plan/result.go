package main

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// result is what has become of a plan.
type result struct {
	plan
	*outboundtest.LoadReport
	left  []time.Duration // when each call left, in their order
	looks [200]look       // each in the middle of an equal part of the time
}

// look is what was to see at one moment.
type look struct {
	waiting int    // callers whose calls wait
	bound   string // what bounds the calls: a limit, or the callers
}

func newResult(p plan, report *outboundtest.LoadReport, start time.Time) *result {
	r := &result{plan: p, LoadReport: report}
	for at := range report.Departures.All() {
		r.left = append(r.left, at.Sub(start))
	}
	for i := range r.looks {
		r.looks[i] = r.look(r.at(i))
	}
	return r
}

// at returns when a look is.
func (r *result) at(i int) time.Duration {
	return time.Duration((float64(i) + 0.5) / float64(len(r.looks)) * float64(r.Took))
}

// by returns how many calls have left by a time, that time included.
func (r *result) by(at time.Duration) int {
	return sort.Search(len(r.left), func(i int) bool { return r.left[i] > at })
}

// look says what is to see at a time. A caller either waits, or makes a call that left in the
// last latency. If one waits, what bounds the calls is the limit that has room last.
func (r *result) look(at time.Duration) look {
	gone := r.by(at)
	inProgress := gone - r.by(at-r.latency)
	l := look{waiting: min(r.workers*r.callers-inProgress, r.calls-gone), bound: byCallers}
	if l.waiting > 0 {
		last := slices.MaxFunc(r.limits, func(a, b limit) int {
			return cmp.Compare(a.room(r.left[:gone]), b.room(r.left[:gone]))
		})
		l.bound = last.Name
	}
	return l
}

// bound returns the share of the time in which this bounds the calls.
func (r *result) bound(what string) float64 {
	n := 0
	for _, l := range r.looks {
		if l.bound == what {
			n++
		}
	}
	return float64(n) / float64(len(r.looks))
}

// bounds returns what bounds the calls for the longest time.
func (r *result) bounds() string {
	most := byCallers
	for _, l := range r.limits {
		if r.bound(l.Name) > r.bound(most) {
			most = l.Name
		}
	}
	return most
}
