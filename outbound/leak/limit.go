package leak

import "time"

// MaxUnit is the largest Unit of a limit.
const MaxUnit = 3

const (
	maxCapacity = 1e12                  // units; above it a float64 no longer tells small costs apart
	maxRate     = 1e12                  // units per second
	maxDrain    = 100 * 365.25 * 86_400 // seconds: capacity / rate
)

// Limit is one leaky bucket of a key: what it holds, how fast that leaks, and what
// finds its level among those of the key.
type Limit struct {
	// Name and Unit find the level: of limits with the same name and unit a key has one.
	Name string
	// Unit is what the limit counts, as a number from 0 to MaxUnit that only its user understands. What is
	// booked of a unit bounds what a limit of that unit can have missed that comes later.
	Unit     int
	Capacity float64 // units
	Rate     float64 // units per second
	// Window is what the limit was made for, if it was made for a window: any of that
	// length sees no more than its user has promised. The law does not need it.
	Window time.Duration `json:",omitzero"`
}

// Takes returns what a call of n units takes of the limit. The least is a billionth
// of the capacity, or 0; and what is above the capacity by no more than half of
// that is rounding: such a call takes all of it.
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

// Above returns the dial time until a level has run down to another. What the
// last bits of the levels may be wrong by counts as nothing: with a limit that
// takes weeks to drain those are nanoseconds, and who came back in time would be
// told to wait for them, again and again.
func (l *Limit) Above(level, to float64) time.Duration {
	if level-to <= 2e-15*level {
		return 0
	}
	return lasts(level-to, l.Rate)
}

// same reports whether both have one level.
func (l *Limit) same(m *Limit) bool { return l.Unit == m.Unit && l.Name == m.Name }

// Sound reports whether l can be a limit that a key was used with. What was kept
// elsewhere may come back as anything.
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
