package redisstore

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// charges returns what was taken for each of a trip's costs, as the script has taken it. The
// script tells of the first place, and those after it are computed again. Where a limit is not
// leaky it tells of them all, because only its log says where there is room.
func (a *answer) charges(to *engine.Attempt) []leak.Charge {
	limits, costs := to.Op.Limits, to.Op.Costs
	dial := leak.State{Speed: 1, Rem: -leak.HoldMemory} // whose zero is the first place
	if a.state.Rem > 0 {                                // then the last of the booked is a microsecond ahead, at least
		dial.Last = max(0, time.Microsecond-(a.place-a.state.Dial()))
	}
	for i := range a.n {
		dial.Level[i].Level = a.full[i]
	}
	runs := runs{limits: limits, rest: a.runs}
	booked := to.Into
	for i := range min(max(0, a.booked), len(costs)) {
		booked = append(booked, leak.Charge{})
		c := &booked[i]
		told := runs.next()
		switch {
		case i == 0:
			c.N, c.Y, c.Up = costs[0], a.full, a.up
			c.Before = a.before - a.place
		case told:
			runs.fill(&dial, &costs[i], runs.place-a.place, c)
		default:
			dial.Fill(limits, &costs[i], maxWait, c)
		}
		c.Place += a.place
		c.Before += a.place
		c.Free = c.Freed(limits)
		c.Born, c.Epoch = a.state.Born, a.state.Epoch
		for j := range a.n {
			if a.repeated { // what has come back since is no part of it
				c.Y[j] += a.y[j] - a.full[j]
			} else if limits[j].Kind == leak.Leaky {
				c.Y[j] += a.state.Level[j].Ret
			}
		}
		c.Seq, c.Version = to.Seq, a.version
	}
	return booked
}

const maxWait = time.Duration(math.MaxInt64)

// runs are calls as the script tells of them: how many, their place, and for each calendar the
// period that they are of.
type runs struct {
	limits []leak.Limit
	rest   []float64
	left   float64 // calls of this run
	place  time.Duration
	of     leak.Units
}

// next goes to the next call, and reports whether the script has told of it.
func (r *runs) next() bool {
	if r.left > 0 {
		r.left--
		return true
	}
	size := 2
	for i := range r.limits {
		if r.limits[i].Kind.Calendar() {
			size++
		}
	}
	if len(r.rest) < size || !(r.rest[0] >= 1) {
		return false
	}
	r.left, r.place = r.rest[0]-1, nanos(r.rest[1])
	of := r.rest[2:size]
	for i := range r.limits {
		if r.limits[i].Kind.Calendar() {
			r.of[i], of = of[0], of[1:]
		}
	}
	r.rest = r.rest[size:]
	return true
}

// fill does what the script has done for a call at a place. The level of a limit that is not leaky
// is the total of its log.
func (r *runs) fill(dial *leak.State, n *leak.Units, place time.Duration, c *leak.Charge) {
	*c = leak.Charge{N: *n, Place: place, Before: dial.Last}
	for i := range r.limits {
		l := &dial.Level[i]
		if r.limits[i].Kind != leak.Leaky {
			l.Level += n[i]
			c.Y[i] = l.Level
			if n[i] > 0 {
				c.Up[i] = r.of[i]
			}
			continue
		}
		run := r.limits[i].Rate * place.Seconds()
		if n[i] > 0 {
			c.Up[i] = max(0, run-l.Level)
			l.Level = max(l.Level, run) + n[i]
		}
		c.Y[i] = l.Level - run
	}
	dial.Last = max(dial.Last, place)
}

// tellsAll reports whether an answer tells of all calls that it has booked, as far as it must.
func (a *answer) tellsAll(limits []leak.Limit) bool {
	r := runs{limits: limits, rest: a.runs}
	if a.booked < 2 || leaky(limits) {
		return len(a.runs) == 0
	}
	for range a.booked {
		if !r.next() {
			return false
		}
	}
	return r.left == 0 && len(r.rest) == 0
}
