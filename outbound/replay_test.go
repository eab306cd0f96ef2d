package outbound

import (
	"fmt"
	"time"
)

// history is what has left: when, of which units, under which version of the
// limits.
type history []departure

type departure struct {
	at      time.Time
	used    Cost
	version int
}

// excess replays what left from one version to another through an ideal limit,
// and says when that held more than its capacity.
func (h history) excess(l Limit, from, to int) error {
	level := 0.0
	var at time.Time
	for i := range h {
		d := &h[i]
		if n := d.used[l.Unit]; n > 0 && d.version >= from && d.version <= to {
			level = max(0, level-l.LeakRate*d.at.Sub(at).Seconds()) + n
			at = d.at
			if level > l.Capacity*(1+1e-6) {
				return fmt.Errorf("%v (versions %d to %d): %v units in it at %v", l, from, to, level, at)
			}
		}
	}
	return nil
}
