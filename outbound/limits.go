package outbound

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/core"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
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
		return &CostError{Key: bucket, Cost: *c, Err: ErrInvalid}
	}
	if bad := core.Fits(set, c.numbers(), headroom); bad != nil {
		return costError(bucket, bad)
	}
	return nil
}

// costError returns the error of a cost that limits can never admit.
func costError(bucket string, bad *core.Misfit) *CostError {
	e := &CostError{Key: bucket, Limit: limitOf(spec.OfLaw(bad.Limit)), Cost: bad.Cost, Headroom: bad.Headroom, Err: ErrTooLarge}
	if bad.Lacks {
		e.Err = ErrInvalid
	}
	return e
}

// failure returns the error of a step for callers.
func (b *Bucket) failure(err error) error {
	switch e := err.(type) {
	case *core.Misfit:
		return costError(b.core.Name, e)
	case *core.Failure:
		if err = e.Err; err == key.ErrLimits {
			err = &LimitError{Reason: err.Error()}
		}
		return &StoreError{Op: e.Op, Key: b.core.Name, Err: err}
	case *core.Refusal:
		full := b.throttled(e.Force, e.Wait, e.Held, e.Why, e.Limit)
		if e.NoSlot {
			p := b.core.Slots()
			if l := p.Limit(); l != nil {
				full.Limit = spec.OfSlots(l).Label()
			}
			full.InProgress, full.Oldest = p.Crowd()
		}
		return full
	}
	return err
}

// throttled returns the refusal of a call that would leave after a wait, while rem of a hold is
// left, because of a limit of f; -1: because of none.
func (b *Bucket) throttled(f *key.Force, wait, rem time.Duration, why uint8, limit int) *ThrottledError {
	e := &ThrottledError{Key: b.core.Name, RetryAfter: wait, Held: rem > 0}
	if e.Held {
		e.Reason = reasonOf(why)
	}
	if limit >= 0 {
		e.Limit = b.core.Label(&f.Limits, limit)
	}
	return e
}
