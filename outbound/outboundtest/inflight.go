package outboundtest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Calls records the calls in flight of processes that share an outbound.InFlight, and finds the
// moment with the most. The zero value is empty and ready to use. It is safe for concurrent use,
// takes calls in any order, and must not be copied after its first use.
type Calls struct {
	mu      sync.Mutex // protects the fields below
	all     []flight
	reached map[string][]time.Time
}

// flight is a call from its begin to just before its end.
type flight struct {
	process    string
	begin, end time.Time
}

// Add records a call of a process that was in flight from begin until just before end. Take begin
// after Acquire and end before Done, then no call is recorded for longer than it held its slot.
func (c *Calls) Add(process string, begin, end time.Time) {
	need(!end.Before(begin), "a call from %v to %v: must not end before it begins", begin, end)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, flight{process, begin, end})
}

// Reached records that a process has reached the store: when it sent a request that was answered.
func (c *Calls) Reached(process string, t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reached == nil {
		c.reached = map[string][]time.Time{}
	}
	c.reached[process] = append(c.reached[process], t)
}

// Len returns the number of calls.
func (c *Calls) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// Most returns the highest number of calls in flight, and the first moment with it. A call counts
// until its process has been silent for this long, if that comes before its end. A call that begins
// in the silence counts. An InFlight keeps its n for a silence of five sixths of its lease. A
// process needs a [Calls.Reached] to be silent. Most panics if silence is 0 or less.
func (c *Calls) Most(silence time.Duration) (n int, at time.Time) {
	need(silence > 0, "a silence of %v: must be above 0", silence)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, times := range c.reached {
		slices.SortFunc(times, time.Time.Compare)
	}
	type change struct {
		at time.Time
		by int
	}
	var changes []change
	for _, f := range c.all {
		if end := c.counts(f, silence); end.After(f.begin) {
			changes = append(changes, change{f.begin, 1}, change{end, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), a.by-b.by) })
	now := 0
	for _, x := range changes {
		if now += x.by; now > n {
			n, at = now, x.at
		}
	}
	return n, at
}

// counts returns when a call stops counting: at its end, or earlier if its process falls silent.
func (c *Calls) counts(f flight, silence time.Duration) time.Time {
	times := c.reached[f.process]
	i, _ := slices.BinarySearchFunc(times, f.begin, time.Time.Compare)
	for i = max(0, i-1); i < len(times); i++ {
		lapse := times[i].Add(silence)
		if lapse.After(f.begin) && lapse.Before(f.end) && (i+1 == len(times) || times[i+1].After(lapse)) {
			return lapse
		}
	}
	return f.end
}

// Check returns an error if more than n calls were in flight at a time, counted as [Calls.Most]
// does.
func (c *Calls) Check(n int, silence time.Duration) error {
	if most, at := c.Most(silence); most > n {
		return fmt.Errorf("outboundtest: %d calls in flight at %s, %d above the limit", most, at.Format(time.RFC3339Nano), most-n)
	}
	return nil
}
