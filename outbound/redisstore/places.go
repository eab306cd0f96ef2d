package redisstore

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// charges returns what was taken for each of a trip's costs, as the script has taken it. The
// script tells of the first place, and those after it are computed again.
func (a *answer) charges(to *engine.Attempt) []leak.Charge {
	limits, costs := to.Op.Limits, to.Op.Costs
	dial := leak.State{Speed: 1, Rem: -leak.HoldMemory} // whose zero is the first place
	if a.state.Rem > 0 {                                // then the last of the booked is a microsecond ahead, at least
		dial.Last = max(0, time.Microsecond-(a.place-a.state.Dial()))
	}
	for i := range a.n {
		dial.Level[i].Level = a.full[i]
	}
	booked := to.Into
	for i := range min(max(0, a.booked), len(costs)) {
		booked = append(booked, leak.Charge{})
		c := &booked[i]
		if i == 0 {
			c.N, c.Y, c.Up = costs[0], a.full, a.up
			c.Before = a.before - a.place
			c.Free = c.Freed(limits)
		} else {
			dial.Fill(limits, &costs[i], maxWait, c)
		}
		c.Place += a.place
		c.Before += a.place
		c.Free += a.place
		c.Born, c.Epoch = a.state.Born, a.state.Epoch
		for j := range a.n {
			if a.repeated { // what has come back since is no part of it
				c.Y[j] += a.y[j] - a.full[j]
			} else {
				c.Y[j] += a.state.Level[j].Ret
			}
		}
		c.Seq, c.Version = to.Seq, a.version
	}
	return booked
}

const maxWait = time.Duration(math.MaxInt64)
