package transport

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// Adopt returns a function for [Transport.OnSignal] that lowers a limit of the bucket to what the
// API reports, for all processes that share the bucket:
//
//	&transport.Transport{Limiter: bucket, OnSignal: transport.Adopt(bucket)}
//
// Two responses in a row must report the same number of requests for the same window. The bucket
// must have a limit of [outbound.Per], [outbound.Window] or [outbound.FixedWindow] with that window
// and a larger number. If the API reports more later, a limit that this function has lowered rises
// again, up to its number at the call of Adopt.
//
// Adopt reads policies of the kind [profile.Window] that count requests. A number that an operator
// has set lower stays. If the store fails, the limit stays until a later response.
func Adopt(b *outbound.Bucket) func(*http.Response, *profile.Signal) {
	a := &adopter{bucket: b, own: b.Limits(), lowered: map[int]float64{}}
	return func(_ *http.Response, s *profile.Signal) { a.adopt(s.Policies()) }
}

// adopter is what Adopt keeps.
type adopter struct {
	bucket *outbound.Bucket
	own    []outbound.Limit

	mu      sync.Mutex      // protects what follows
	before  map[int]float64 // what the response before reported, by the index of the limit
	lowered map[int]float64 // what this adopter has set
}

// adopt sets the limits that this response and the one before report.
func (a *adopter) adopt(policies []profile.Policy) {
	a.mu.Lock()
	defer a.mu.Unlock()
	reported := map[int]float64{}
	for i := range policies {
		p := &policies[i]
		if p.Kind != profile.Window || p.Unit != "" && p.Unit != "requests" || !(p.Limit > 0) {
			continue
		}
		for k := range a.own {
			if n, window := a.own[k].Each(); n > 0 && window == p.Window && a.own[k].Unit == 0 {
				reported[k] = min(p.Limit, n)
			}
		}
	}
	if len(reported) == 0 {
		return // the response reports no such limit
	}
	before := a.before
	a.before = reported
	limits, changed := slices.Clone(a.bucket.Limits()), false
	if len(limits) != len(a.own) {
		return
	}
	for k, n := range reported {
		is, window := limits[k].Each()
		if _, own := a.own[k].Each(); before[k] != n || window != own || n == is || n > is && a.lowered[k] != is {
			continue
		}
		if l, ok := withNumber(limits[k], n); ok {
			limits[k], changed = l, true
		}
	}
	if changed && a.bucket.SetLimits(context.Background(), limits...) == nil {
		for k := range reported {
			a.lowered[k], _ = limits[k].Each()
		}
	}
}

// withNumber returns a limit of the same function, window, unit and name with another number.
func withNumber(l outbound.Limit, n float64) (outbound.Limit, bool) {
	was, window := l.Each()
	for _, limit := range []func(float64, time.Duration) outbound.Limit{outbound.Per, outbound.Window, outbound.FixedWindow} {
		same, other := limit(was, window), limit(n, window)
		same.Unit, same.Name, other.Unit, other.Name = l.Unit, l.Name, l.Unit, l.Name
		if same == l {
			return other, true
		}
	}
	return l, false
}
