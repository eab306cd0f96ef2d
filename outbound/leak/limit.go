package leak

import "time"

// MaxUnit is the largest Unit of a limit.
const MaxUnit = 3

const (
	maxCapacity = 1e12                  // units; above it a float64 no longer tells small costs apart
	maxRate     = 1e12                  // units per second
	maxDrain    = 100 * 365.25 * 86_400 // seconds: capacity / rate
)

// Limit is one leaky bucket of a key: what it holds, how fast that leaks, and the name and
// unit by which its level is found among those of the key.
type Limit struct {
	// Name and Unit find the level. A key has one level for each name and unit.
	Name string
	// Unit is what the limit counts, as a number from 0 to MaxUnit that only its user
	// understands. A limit that is set later has missed what was booked of its unit: the
	// levels of other limits of that unit bound how much that is.
	Unit     int
	Capacity float64 // units
	Rate     float64 // units per second
	// Window is the API's window that the limit was made for; 0: for none. The law does
	// not need it. It comes back to the user with the other fields.
	Window time.Duration `json:",omitzero"`
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

// Sound reports whether a key can have been used with this limit. A store may read back
// anything.
func (l *Limit) Sound() bool {
	return l.Capacity > 0 && l.Capacity <= maxCapacity && l.Rate > 0 && l.Rate <= maxRate &&
		l.Capacity/l.Rate < 1.01*maxDrain && l.Capacity/l.Rate > 0.99e-9 && l.Unit >= 0 && l.Unit <= MaxUnit && l.Window >= 0
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
		if a[i].Capacity != b[i].Capacity || a[i].Rate != b[i].Rate || !a[i].same(&b[i]) {
			return false
		}
	}
	return true
}
