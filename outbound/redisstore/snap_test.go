package redisstore_test

import (
	"math"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// charges are all that an operation points to.
func charges(op *outbound.Op) []*outbound.Charge {
	all := slices.Clone(op.Charges)
	for i := range op.Reports {
		if c := op.Reports[i].Charge; c != nil {
			all = append(all, c)
		}
	}
	if op.Move != nil {
		all = append(all, op.Move)
	}
	return all
}

// clone makes an operation that changes charges of its own.
func clone(op *outbound.Op) *outbound.Op {
	c := &outbound.Op{
		Limits: op.Limits, Reports: slices.Clone(op.Reports), Action: op.Action, Costs: op.Costs, Wait: op.Wait, Horizon: op.Horizon,
		After: op.After, Claim: op.Claim, Charges: slices.Clone(op.Charges), Replacement: op.Replacement,
	}
	own := make(map[*outbound.Charge]*outbound.Charge)
	of := func(c *outbound.Charge) *outbound.Charge {
		if c != nil && own[c] == nil {
			is := *c
			own[c] = &is
		}
		return own[c]
	}
	for i := range c.Charges {
		c.Charges[i] = of(c.Charges[i])
	}
	for i := range c.Reports {
		c.Reports[i].Charge = of(c.Reports[i].Charge)
	}
	c.Move = of(op.Move)
	return c
}

// snap makes a charge the latest that is so but for rounding: its place and the
// server's clock are rounded each for itself, and a nanosecond more or less is
// nothing to the store. Of those whose bit is set in bent, the first in charges
// being the lowest, it makes none the latest.
func snap(op *outbound.Op, s outbound.Stored, at time.Duration, bent int) {
	look := outbound.Op{Limits: op.Limits}
	r := look.Apply(&s, at)
	now := r.State
	limits := make([]leak.Limit, len(r.Limits))
	for i, l := range r.Limits {
		limits[i] = leak.Limit{Capacity: l.Capacity, Rate: l.LeakRate}
	}
	// A move stays as it is: one of other limits is none.
	(&outbound.Op{Reports: op.Reports, Charges: op.Charges}).Align(r.Version, r.Limits)
	all := charges(op)
	each := func(i int) bool {
		c := all[i]
		ahead := c.Place - now.Dial() - now.Last
		if c.Born != now.Born || ahead > 3 || ahead < -3 {
			return true
		}
		if bent&(1<<i) != 0 {
			if ahead == 0 {
				c.Place++
			}
			return false
		}
		c.Place -= ahead
		for i, l := range limits {
			y := now.Level[i].Level + now.Level[i].Ret - l.Rate*now.Last.Seconds()
			if c.Version == r.Version && c.N[i] > 0 && math.Abs(y-c.Y[i]) < 5e-9*l.Rate {
				c.Y[i] = y
			}
		}
		return true
	}
	for i := len(op.Charges); i < len(all); i++ {
		each(i)
	}
	for i, c := range slices.Backward(op.Charges) {
		if !each(i) || c.Version != r.Version {
			break
		}
		if is := c.Charge; !now.Unbook(limits, &is) {
			break
		}
	}
}
