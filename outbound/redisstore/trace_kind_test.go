package redisstore_test

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

var losAngeles = func() *time.Location {
	zone, err := time.LoadLocation("America/Los_Angeles")
	if err != nil {
		return time.UTC
	}
	return zone
}()

// someKind draws a window of any length or a calendar.
func (t *trace) someKind() outbound.Limit {
	n := []float64{1, 2, 3, 10, 40, 100, 1000, 2.5, 0.25}[t.r.IntN(9)]
	window := time.Duration(math.Exp(t.r.Float64()*math.Log(72e3)) * 50e6).Truncate([]time.Duration{1, time.Millisecond}[t.r.IntN(2)])
	switch t.r.IntN(10) {
	case 0:
		return outbound.Hourly(n)
	case 1:
		return outbound.Daily(n, []*time.Location{time.UTC, losAngeles}[t.r.IntN(2)])
	case 2:
		return outbound.Monthly(n, time.UTC)
	case 3, 4:
		return outbound.FixedWindow(n, window)
	}
	return outbound.Window(n, window)
}

// drainOf returns the seconds in which a limit that is full has room for all again.
func drainOf(l *outbound.Limit) float64 {
	if l.LeakRate == 0 {
		return 3600
	}
	return l.Capacity / l.LeakRate
}
