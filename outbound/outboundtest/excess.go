package outboundtest

import (
	"fmt"
	"time"
)

// Window is a stretch of a History. Its ends are departures, and both are in it.
type Window struct {
	Start      time.Time // the first departure
	End        time.Time // the last departure
	Units      float64   // the units that left, those of both ends included
	Departures int       // the number of departures
}

// Span returns the time from Start to End: 0 for a single departure.
func (w Window) Span() time.Duration { return w.End.Sub(w.Start) }

// Excess is the error of History.Check: the worst window of a history that broke
// the law, the one with the most units above what was allowed in its Span.
type Excess struct {
	Window
	Allowed float64 // units allowed in the window: Capacity + Slack + LeakRate * its seconds
	Over    float64 // units above Allowed

	// The law that was checked: units, units per second, units.
	Capacity, LeakRate, Slack float64
}

// Error says how many units left in which window, and how many were allowed.
func (e *Excess) Error() string {
	return fmt.Sprintf("outboundtest: %g units left within %v from %s on, %g above the %g allowed (capacity %g, leak rate %g per second, slack %g)",
		e.Units, e.Span(), e.Start.Format(time.RFC3339Nano), e.Over, e.Allowed, e.Capacity, e.LeakRate, e.Slack)
}
