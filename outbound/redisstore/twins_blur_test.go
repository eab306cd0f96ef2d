package redisstore_test

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// blurs reports whether rounding may have decided which booking is the latest. That is
// so if sums have become so large that their last digits are as much as the tolerance
// for rounding (rates changed late in a life, or a limit far ahead that nothing was
// charged to); if times are so long that they have no nanoseconds; if so much leaks in
// the few nanoseconds by which the places of a batch are rounded; or if a place is
// given back while the clock is slowed and shows no whole nanoseconds, or while places
// of days are booked.
func blurs(op *leak.Op, r *leak.Reply) bool {
	if (len(op.Back) > 0 || op.Move != nil || len(op.Reports) > 0) && (r.State.Speed < 1 || r.State.Last > 24*time.Hour) {
		return true
	}
	limits := counted(op)
	for i := range limits {
		if limits[i].Kind != leak.Leaky {
			continue
		}
		l, most := &r.State.Level[i], max(r.State.Level[i].Level, limits[i].Capacity)
		if math.Abs(l.Ret)*1e-15 > 1e-11*most {
			return true
		}
		for _, c := range charges(op) { // its level may have been raised since
			if math.Abs(c.Y[i])*1e-15 > 1e-11*limits[i].Capacity {
				return true
			}
		}
		if len(op.Back) > 0 || op.Move != nil || len(op.Reports) > 0 && r.State.Rem > 0 {
			if limits[i].Rate*4e-9 > 1e-10*most {
				return true
			}
		}
	}
	return r.State.Last > 1e15
}

// byANanosecond reports whether one side has granted more than the other because of a
// nanosecond.
func (w *twins) byANanosecond(op *leak.Op, a, b *leak.Reply) bool {
	if len(a.Charges) > len(b.Charges) {
		a, b = b, a
	}
	if len(a.Charges) == len(b.Charges) || op.Action != leak.Book || !a.Refused {
		return false
	}
	first, _ := b.State.Due(b.Charges[0].Place)
	for _, limit := range [...]time.Duration{op.Wait, op.Horizon, first + max(100*time.Millisecond, first)} {
		if d := a.Wait - w.model.ahead - limit; max(d, -d) <= time.Duration(float64(2+len(b.Charges))/b.State.Speed) {
			return true
		}
	}
	return false
}

// tied reports whether the refused call waits as long for another limit, or for its
// order, as for the limit that the answer names.
func (w *twins) tied(op *leak.Op, r *leak.Reply, other int) bool {
	var waits [2]float64
	for i, limit := range [...]int{r.Limit, other} {
		waits[i] = max(0, r.State.Last.Seconds())
		if limit >= 0 && op.Limits[limit].Kind != leak.Leaky {
			return true
		}
		if limit >= 0 {
			l := &op.Limits[limit]
			n := op.Costs[len(r.Charges)][limit]
			waits[i] = max(0, (r.State.Level[limit].Level+n-l.Capacity)/l.Rate)
		}
	}
	return math.Abs(waits[0]-waits[1]) <= 2e-9*float64(1+len(r.Charges))
}
