package engine

import "time"

// clockOffset estimates how far the store's clock is ahead of this process's. Each trip bounds the
// offset: the store wrote the reply after the request was sent and before the reply arrived. The
// bounds of many trips together are narrow, and their middle is the estimate. So the engine knows
// when the store wrote a reply, even if the reply was slow.
type clockOffset struct {
	low, high time.Duration // store - local
	when      time.Time     // when these bounds were found, or zero
	back      time.Duration // mean latency of a reply
	spread    time.Duration // mean deviation of that time
}

// drift bounds how far two clocks go apart: by one part in drift.
const drift = 5000

// lay adds a trip's bounds. when is the local time at which the store's clock showed
// at. due is the local time by which such a reply normally arrives. now is a time of
// the store's clock between sent and arrived.
func (o *clockOffset) lay(at, now time.Duration, sent, arrived time.Time) (when, due time.Time) {
	low, high := now-local(arrived), now-local(sent)
	if !o.when.IsZero() {
		apart := arrived.Sub(o.when) / drift
		if l, h := max(low, o.low-apart), min(high, o.high+apart); l <= h {
			low, high = l, h
		} else {
			o.back, o.spread = 0, 0 // this is another server, or the clock was set
		}
	}
	o.low, o.high, o.when = low, high, arrived
	when = start.Add(at - (low + (high-low)/2))
	back := arrived.Sub(when)
	if o.back == 0 || back < o.back/2 { // the first trip may open a connection
		o.back, o.spread = back, back/8
	}
	most := o.back + 4*o.spread
	back = min(back, max(most, o.back+o.back/4)) // a way that is far too long counts less
	o.spread += (max(back-o.back, o.back-back) - o.spread) / 4
	o.back += (back - o.back) / 8
	return when, when.Add(most)
}

// least returns a lower bound of the store's clock, or 0.
func (o *clockOffset) least(now time.Time) time.Duration {
	if o.when.IsZero() {
		return 0
	}
	return max(0, local(now)+o.low-now.Sub(o.when)/drift)
}

// start is the local time that counts as zero here.
var start = time.Now()

func local(t time.Time) time.Duration { return t.Sub(start) }
