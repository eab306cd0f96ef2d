package redisstore_test

import (
	"math"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// charges returns all charges of an operation.
func charges(op *leak.Op) []*leak.Charge {
	var all []*leak.Charge
	for i := range op.Back {
		all = append(all, &op.Back[i])
	}
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

// clone copies an operation with its charges.
func clone(op *leak.Op) *leak.Op {
	c := *op
	c.Reports, c.Back, c.Into = slices.Clone(op.Reports), slices.Clone(op.Back), nil
	own := make(map[*leak.Charge]*leak.Charge)
	of := func(c *leak.Charge) *leak.Charge {
		if c != nil && own[c] == nil {
			is := *c
			own[c] = &is
		}
		return own[c]
	}
	for i := range c.Reports {
		c.Reports[i].Charge = of(c.Reports[i].Charge)
	}
	c.Move = of(op.Move)
	return &c
}

// snap makes charges the latest that are so but for rounding: a place and the
// server's clock are rounded separately, and the store ignores a nanosecond
// more or less. It makes no charge the latest whose bit is set in bent, with
// the lowest bit for the first charge.
func snap(op *leak.Op, s leak.Stored, at, unix time.Duration, bent int) {
	limits := op.Limits
	look := leak.Op{Limits: limits, Periods: op.Periods, Stamp: op.Stamp}
	r := look.ApplyAt(&s, at, at+unix)
	now := r.State
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
			if l.Kind != leak.Leaky {
				continue
			}
			y := now.Level[i].Level + now.Level[i].Ret - l.Rate*now.Last.Seconds()
			if c.Version == r.Version && (c.N[i] > 0 || now.Level[i].Level > 0) && math.Abs(y-c.Y[i]) < 5e-9*l.Rate {
				c.Y[i] = y
			}
		}
		return true
	}
	for i := len(op.Back); i < len(all); i++ {
		each(i)
	}
	for i := len(op.Back) - 1; i >= 0; i-- {
		if !each(i) || op.Back[i].Version != r.Version {
			break
		}
		if is := op.Back[i]; !now.Unbook(limits, &is) {
			break
		}
	}
}
