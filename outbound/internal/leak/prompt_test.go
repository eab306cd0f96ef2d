package leak

import (
	"fmt"
	"time"
)

// shortest returns the shortest lawful wait of a call of n, found without the
// arithmetic under test: ideal buckets replay all calls that stand, those that have
// left and those that are booked, at their places. The call goes after all of them,
// because order of booking is order of departure.
func (w *world) shortest(n *Units) time.Duration {
	dial, least := w.state.Dial(), time.Duration(0)
	for i, l := range w.limits() {
		level, at := 0.0, time.Duration(0)
		for k := range w.n {
			c := &w.calls[k]
			if c.N == (Units{}) { // given back
				continue
			}
			level = max(0, level-l.Rate*(c.place-at).Seconds()) + c.N[i]
			at = c.place
		}
		least = max(least, at-dial)
		if n[i] > 0 {
			least = max(least, at-dial+l.Above(level+n[i], l.Capacity))
		}
	}
	return least
}

// prompt checks that nobody waits longer than the law demands. After a hold, a
// change of limits or a step of the clock calls wait on purpose; and of a place that is
// given back while others are booked behind it, or of a call that settles, comes back
// only what is safe.
func (w *world) prompt() error {
	if w.events > 0 || w.workers || w.untidy {
		return nil
	}
	for k := range w.costs {
		n, ok := w.fits(k)
		if !ok {
			continue
		}
		w.compared++
		told, _ := w.state.Wait(w.limits(), &n)
		if least := w.shortest(&n); told > least+10 {
			return fmt.Errorf("%v waits %v, and could go after %v", n, told, least)
		}
	}
	return nil
}
