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

// Excess is the error of History.Check, CheckWindow and CheckCalendar. It is the window with the
// most units above the limit.
type Excess struct {
	Window
	Allowed float64 // units allowed in the window: Capacity + Slack + LeakRate * its seconds
	Over    float64 // units above Allowed

	// The limit that was checked: units, units per second, units. The last two are 0 except for
	// Check.
	Capacity, LeakRate, Slack float64
	// In is what CheckWindow or CheckCalendar counts by: "any 1m0s", "the day that begins at
	// 2026-03-29T00:00:00+01:00". It is empty for Check.
	In string
}

// Error returns the window, how many units left in it, and how many were allowed.
func (e *Excess) Error() string {
	if e.In != "" {
		return fmt.Sprintf("outboundtest: %g units left within %v from %s, %g above the %g of %s",
			e.Units, e.Span(), e.Start.Format(time.RFC3339Nano), e.Over, e.Allowed, e.In)
	}
	return fmt.Sprintf("outboundtest: %g units left within %v from %s, %g above %g (%g burst, %g/s, slack %g)",
		e.Units, e.Span(), e.Start.Format(time.RFC3339Nano), e.Over, e.Allowed, e.Capacity, e.LeakRate, e.Slack)
}
