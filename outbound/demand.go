package outbound

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// demand is what calls have lately asked for of each limit.
type demand struct {
	force *inForce
	since [leak.Max]time.Time
	asked [leak.Max]float64
}

// add counts a call's cost, and returns the demand as a multiple of the limit that has the most.
func (d *demand) add(f *inForce, c *Cost, now time.Time) (most float64) {
	if d.force != f {
		*d = demand{force: f}
	}
	for i := range f.law {
		l := &f.law[i]
		rate, memory := l.Rate, max(time.Minute, l.Window)
		if l.Kind.Calendar() {
			memory = periodOf[l.Kind]
			rate = l.Capacity / memory.Seconds()
		} else if fills := l.Above(l.Capacity, 0); fills > memory {
			memory = fills
		}
		if d.since[i].IsZero() {
			d.since[i] = now
		}
		passed := now.Sub(d.since[i])
		for passed > 2*memory { // what is older counts less and less
			passed /= 2
			d.asked[i] /= 2
		}
		d.since[i] = now.Add(-passed)
		if c.real() {
			d.asked[i] += c[l.Unit]
		}
		most = max(most, d.asked[i]/max(l.Capacity, rate*passed.Seconds()))
	}
	return most
}

// periodOf is how long a period of the calendar lasts, on an average.
var periodOf = map[leak.Kind]time.Duration{
	leak.Hourly: time.Hour, leak.Daily: 24 * time.Hour, leak.Monthly: 730*time.Hour + 30*time.Minute,
}
