package outbound

import (
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// checkLimits validates the limits of a bucket, which may be shared, and appends them to own.
func checkLimits(own []spec.Limit, bucket string, limits []Limit, shared bool) ([]spec.Limit, error) {
	for i := range limits {
		own = append(own, limits[i].spec())
	}
	bad, flaw := spec.CheckAll(own, shared)
	switch {
	case flaw == "":
		return own, nil
	case bad == nil:
		return nil, &LimitError{Key: bucket, Reason: flaw}
	}
	return nil, &LimitError{Key: bucket, Limit: limitOf(*bad), Reason: flaw}
}

// check returns why a call of this cost, which keeps a fraction of each limit free, can never be
// admitted by these limits of a bucket, or nil.
func check(set *key.Limits, bucket string, c *Cost, headroom float64) error {
	if !c.valid() {
		return costError(bucket, nil, c, ErrInvalid)
	}
	bad, lacks := set.Misfit(c.numbers(), headroom)
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
		e.Limit = limitOf(spec.OfLaw(l))
	}
	return e
}
