package redisstore

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// places are what was taken for each of a request's costs, in their order, as the
// script has taken it.
type places struct {
	*answer
	*request
	// From the first place on, which is the zero of this dial, it is computed again.
	dial leak.State
	next int
}

func (a *answer) places(r *request) places {
	p := places{answer: a, request: r, dial: leak.State{Speed: 1, Rem: -leak.HoldMemory}}
	if a.state.Rem > 0 { // then the last of the booked is a microsecond ahead, at least
		p.dial.Last = max(0, time.Microsecond-(a.place-a.state.Dial()))
	}
	for i := range a.n {
		p.dial.Level[i].Level = a.full[i]
	}
	return p
}

// book appends the charges of the next n costs.
func (p *places) book(to []leak.Charge, n int) []leak.Charge {
	a := p.answer
	for range n {
		to = append(to, leak.Charge{})
		c := &to[len(to)-1]
		units := &p.costs[p.next]
		if p.next == 0 {
			c.N, c.Y, c.Up = *units, a.full, a.up
			c.Before = a.before - a.place
			c.Free = c.Freed(p.limits)
		} else {
			p.dial.Fill(p.limits, units, maxWait, c)
		}
		p.next++
		c.Place += a.place
		c.Before += a.place
		c.Free += a.place
		c.Born, c.Epoch = a.state.Born, a.state.Epoch
		for i := range a.n {
			if a.repeated { // what has come back since is no part of it
				c.Y[i] += a.y[i] - p.full[i]
			} else {
				c.Y[i] += a.state.Level[i].Ret
			}
		}
		c.Seq, c.Version = p.seq, a.version
	}
	return to
}

const maxWait = time.Duration(math.MaxInt64)
