package leak

import (
	"math"
	"time"
)

// MaxUnit is the largest Unit of a limit.
const MaxUnit = 3

const (
	maxCapacity = 1e12                  // units; above it a float64 no longer tells small costs apart
	maxRate     = 1e12                  // units per second
	maxDrain    = 100 * 365.25 * 86_400 // seconds: capacity / rate
)

// Kind is what a limit promises.
type Kind uint8

// The kinds.
const (
	Leaky   Kind = iota // at most Capacity + Rate*W units in any interval of length W
	Moving              // at most Capacity units in any interval of length Window
	Fixed               // the same in a window that begins with the first call after the last one
	Hourly              // in each hour of UTC
	Daily               // in each day of Zone
	Monthly             // in each month of Zone
)

// Calendar reports whether limits of this kind count by the calendar.
func (k Kind) Calendar() bool { return k >= Hourly }

// Limit is one limit of a key: what it holds, how fast that leaks, and the name and unit by
// which its level is found among those of the key.
type Limit struct {
	// Name and Unit find the level. A key has one level for each name and unit.
	Name string
	// Unit is what the limit counts, as a number from 0 to MaxUnit that only its user
	// understands. A limit that is set later has missed what was booked of its unit: the
	// levels of other limits of that unit bound how much that is.
	Unit     int32
	Kind     Kind    `json:",omitzero"`
	Capacity float64 // units
	// Rate is in units per second. That of a window is Capacity by Window, and that of a
	// calendar is 0.
	Rate float64
	// Window is the length of a window. For a leaky limit it is the API's window that the
	// limit was made for, 0: for none, which comes back to the user with the other fields.
	Window time.Duration `json:",omitzero"`
	// Zone is the name of a calendar's time zone, which only the user understands.
	Zone string `json:",omitzero"`
	// N is the number of units in Window that a leaky limit was made for. If N is zero, it was made
	// for none. Only the user understands it.
	N float64 `json:",omitzero"`
	// Unnamed is true if the user gave no name, and Name was made up. Only the user understands it.
	Unnamed bool `json:",omitzero"`
}

// Takes returns what a call of n units takes of the limit: 0, or at least a billionth of the
// capacity. A call of more than the capacity by at most half of that billionth, which is
// rounding, takes all of it.
func (l *Limit) Takes(n float64) float64 {
	switch {
	case n <= 0:
		return n
	case n <= l.Capacity:
		return max(n, l.Capacity*1e-9)
	case n <= l.Capacity*(1+0.5e-9):
		return l.Capacity
	}
	return n
}

// Above returns the dial time in which a level runs down to another. The error of the last
// bits of the levels counts as nothing. In a limit that takes weeks to drain it is
// nanoseconds, and a caller that came back in time would be told to wait for them, again and
// again.
func (l *Limit) Above(level, to float64) time.Duration {
	if level-to <= 2e-15*level {
		return 0
	}
	return lasts(level-to, l.Rate)
}

// same reports whether both have one level.
func (l *Limit) same(m *Limit) bool { return l.Unit == m.Unit && l.Name == m.Name }

// together reports whether limits of these kinds and zones share a log: windows do, and calendars
// whose periods are the same.
func together(a, b Kind, zone, other string) bool {
	if a == Leaky || b == Leaky || a.Calendar() || b.Calendar() {
		return a == b && zone == other
	}
	return true
}

// Sound reports whether a key can have been used with this limit. A store may read back
// anything.
func (l *Limit) Sound() bool {
	if !(l.Capacity > 0 && l.Capacity <= maxCapacity) || l.Unit < 0 || l.Unit > MaxUnit || l.Window < 0 || l.Kind > Monthly || !l.soundN() {
		return false
	}
	if l.Kind.Calendar() {
		return l.Rate == 0 && l.Window == 0
	}
	drain := l.Capacity / l.Rate
	if w := l.Window.Seconds(); l.Kind != Leaky && !(l.Window >= parts && math.Abs(drain-w) <= 1e-9*w) {
		return false
	}
	return l.Zone == "" && l.Rate > 0 && l.Rate <= maxRate && drain < 1.01*maxDrain && drain > 0.99e-9
}

// soundN reports whether N belongs to the limit's kind and window.
func (l *Limit) soundN() bool {
	return l.N == 0 || l.Kind == Leaky && l.Window > 0 && l.N > 0 && l.N <= math.MaxFloat64
}

func allSound(limits []Limit) bool {
	for i := range limits {
		if !limits[i].Sound() {
			return false
		}
	}
	return true
}

// Find returns the index of the limit that has the level of l, or -1.
func Find(limits []Limit, l *Limit) int {
	for i := range limits {
		if limits[i].same(l) {
			return i
		}
	}
	return -1
}

// Equal reports whether both have the same limits in the same order.
func Equal(a, b []Limit) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	for i := range a {
		if !a[i].equal(&b[i]) {
			return false
		}
	}
	return true
}

// equal reports whether both are the same limit with the same shape.
func (l *Limit) equal(m *Limit) bool { return l.same(m) && l.shaped(m) }

// shaped reports whether both have the same shape.
func (l *Limit) shaped(m *Limit) bool {
	return l.Kind == m.Kind && l.Capacity == m.Capacity && l.Rate == m.Rate && (l.Kind == Leaky || l.Window == m.Window) && l.Zone == m.Zone
}
