package engine

import "time"

// clockOffset estimates how far the store's clock is ahead of this process's. Each trip
// bounds it: the reply was written after the request was sent and before it arrived.
// The bounds of many trips together are narrow, and their middle is the estimate.
// A slow reply is then still laid on the time at which it was written.
type clockOffset struct {
	low, high time.Duration // store - local
	when      time.Time     // of these bounds; zero: none yet
	back      time.Duration // a reply's way back, mean
	spread    time.Duration // and its deviation
}

// drift is how much two clocks may go apart, at most: one part of so many.
const drift = 5000

// lay takes a trip's bounds in, and returns the local time at which the store's clock
// showed at, and the one by which such a reply is normally here. now is what that clock
// showed between sent and arrived.
func (o *clockOffset) lay(at, now time.Duration, sent, arrived time.Time) (when, heard time.Time) {
	low, high := now-local(arrived), now-local(sent)
	if !o.when.IsZero() {
		apart := arrived.Sub(o.when) / drift
		if l, h := max(low, o.low-apart), min(high, o.high+apart); l <= h {
			low, high = l, h
		} else {
			o.back, o.spread = 0, 0 // another server, or its clock was set
		}
	}
	o.low, o.high, o.when = low, high, arrived
	when = start.Add(at - (low + (high-low)/2))
	back := arrived.Sub(when)
	if o.back == 0 || back < o.back/2 { // the first trip may open a connection
		o.back, o.spread = back, back/8
	}
	most := o.back + 4*o.spread
	back = min(back, max(most, o.back+o.back/4)) // one that is far too long counts less
	o.spread += (max(back-o.back, o.back-back) - o.spread) / 4
	o.back += (back - o.back) / 8
	return when, when.Add(most)
}

// least returns what the store's clock shows now at least; 0: that is not known.
func (o *clockOffset) least(now time.Time) time.Duration {
	if o.when.IsZero() {
		return 0
	}
	return max(0, local(now)+o.low-now.Sub(o.when)/drift)
}

// start is the zero of the local times here.
var start = time.Now()

func local(t time.Time) time.Duration { return t.Sub(start) }
