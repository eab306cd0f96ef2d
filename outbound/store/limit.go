package store

import (
	"math"
	"slices"
	"time"
)

// Max is the largest number of limits of one bucket.
const Max = 8

// MaxUnit is the largest Unit of a limit.
const MaxUnit = 3

const (
	maxCapacity = 1e12                  // units; above it a float64 rounds small costs away
	maxRate     = 1e12                  // units per second
	maxDrain    = 100 * 365.25 * 86_400 // seconds: capacity / rate
)

// Kind is what a limit promises.
type Kind uint8

// The kinds.
const (
	Leaky   Kind = iota // at most Capacity + Rate*W units in any interval of length W
	Window              // at most Capacity units in any interval of length Window
	Fixed               // the same in a window that begins with the first call after the last window
	Hourly              // at most Capacity units in each hour of UTC
	Daily               // in each day of Zone
	Monthly             // in each month of Zone
	Weekly              // in each week of Zone
)

// Calendar reports whether a limit of the kind counts in periods of a calendar, so that an [Op]
// needs its [Period].
func (k Kind) Calendar() bool { return k >= Hourly }

// Scripted reports whether the script of package redisstore can carry out steps with limits of the
// kind. If it cannot, Go does, and a step takes two requests or more.
func (k Kind) Scripted() bool { return laws[k].scripted(k) }

// Limit is one limit of a key.
type Limit struct {
	// Name, Unit and Kind identify the limit. When the limits of a key change, a limit keeps its
	// level if these three stay.
	Name string
	// Zone names a calendar: its time zone, and the first day of its weeks or months. Only the user
	// understands it.
	Zone     string  `json:",omitzero"`
	Capacity float64 // units
	// Rate is in units per second. The rate of a window is Capacity / Window. The rate of a
	// calendar is 0.
	Rate float64
	// Window is the length of a window. A leaky limit keeps here the window that N counts.
	Window time.Duration `json:",omitzero"`
	// N is the number of units in Window that a leaky limit was made for. If N is zero, it was
	// made for none. Only the user understands it.
	N float64 `json:",omitzero"`
	// Unit is what the limit counts: a number from 0 to MaxUnit that only the user understands.
	Unit int8
	Kind Kind `json:",omitzero"`
	// Unnamed is true if the user gave no name and Name was made up. If two limits of a change are the
	// only such ones of their unit and kind, the new one keeps the level, whatever their Names.
	Unnamed bool `json:",omitzero"`
	// Version orders sets of limits: see [Op.Yields]. That of a set is the highest of its limits.
	Version int32 `json:",omitzero"`
}

// Takes returns what a call of n units takes of the limit: 0, or at least a billionth of the
// capacity. A call of more than the capacity by at most half of that billionth, which is
// rounding, takes all of it.
func (l *Limit) Takes(n float64) float64 {
	least := l.Capacity * 1e-9
	switch {
	case n >= least && n <= l.Capacity, n <= 0 || !l.Fits(n):
		return n
	case n < least:
		return least
	}
	return l.Capacity
}

// flow returns the units that leak in so many seconds of the dial, rounded: Go may make one
// operation of a product and a sum, with another rounding than on other machines and in other
// languages. So every product to which something is added has such a conversion.
func (l *Limit) flow(sec float64) float64 { return float64(l.Rate * sec) }

// Fits reports whether so many units are within the capacity, except for the rounding of sums.
func (l *Limit) Fits(units float64) bool { return units <= l.Capacity*(1+0.5e-9) }

// Share returns the limit of a part of l's calls. Processes whose parts add up to 1 admit together
// what l does. A share below one unit is a whole unit that returns as seldom as the part says. A
// calendar's stays below a unit: a unit in each period would be more. A fixed window becomes a
// window, because the windows of processes begin at different times.
func (l *Limit) Share(part float64) Limit {
	m := *l
	m.N, m.Capacity, m.Rate = 0, l.Capacity*part, l.Rate*part
	if round := math.Round(m.Capacity); round > m.Capacity && round <= m.Capacity*(1+0.5e-9) {
		m.Capacity = round // a 49th of 49 is 1, except for rounding
	}
	l.law().share(&m, min(1, l.Capacity))
	return m
}

// Owes returns how many of n units a store has to be charged with. A limit like l has counted them
// meanwhile and has this level, and the last of them left d ago. The level of the store has leaked
// too, so what has leaked counts. A window or a calendar has freed its units in the store as well.
func (l *Limit) Owes(n, level float64, d time.Duration) float64 { return l.law().owes(l, n, level, d) }

// Above returns the time on the key's clock in which a level leaks down to another. An error in the
// last bits of the levels counts as zero. In a limit that takes weeks to drain it would be
// nanoseconds, and a caller that retried in time would wait for them again and again.
func (l *Limit) Above(level, to float64) time.Duration {
	if level-to <= 2e-15*level {
		return 0
	}
	return lasts(level-to, l.Rate)
}

// after returns a time so many windows after another.
func (l *Limit) after(w time.Duration, turns float64) time.Duration {
	return add(w, time.Duration(min(turns*float64(l.Window), farthest)))
}

// Parted reports whether the limit needs its [Part] to say when calls may leave.
func (l *Limit) Parted() bool { return l.law().shares(l) > 0 }

// Slides reports whether each call counts for a Window from when it left.
func (l *Limit) Slides() bool { return l.law().slides() }

// same reports whether m is the same limit as l, perhaps with other numbers.
func (l *Limit) same(m *Limit) bool { return l.Unit == m.Unit && l.Kind == m.Kind && l.Name == m.Name }

// equal reports whether both are the same limit with the same numbers.
func (l *Limit) equal(m *Limit) bool {
	return l.same(m) && l.Capacity == m.Capacity && l.Rate == m.Rate && l.Window == m.Window && l.Zone == m.Zone && l.Version == m.Version
}

// Same reports whether both are the same limits in the same order, perhaps with other numbers.
// Costs and charges that count by one of them count by the other.
func Same(a, b []Limit) bool {
	return identical(a, b) || slices.EqualFunc(a, b, func(l, m Limit) bool { return l.same(&m) })
}

// Equal reports whether both are the same limits in the same order with the same numbers.
func Equal(a, b []Limit) bool {
	return identical(a, b) || slices.EqualFunc(a, b, func(l, m Limit) bool { return l.equal(&m) })
}

// identical reports whether both are one slice.
func identical(a, b []Limit) bool { return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0] }

// Sound reports whether a key can have been used with this limit. A store may read back
// anything.
func (l *Limit) Sound() bool {
	return l.Capacity > 0 && l.Capacity <= maxCapacity && l.Unit >= 0 && l.Unit <= MaxUnit && l.Window >= 0 && l.Kind <= Weekly && l.Version >= 0 &&
		(l.N == 0 || l.Kind == Leaky && l.Window > 0 && l.N > 0 && l.N <= math.MaxFloat64) && l.law().shaped(l)
}

// allSound reports whether there are limits, all are sound, and no two have one level.
func allSound(limits []Limit) bool {
	for i := range limits {
		if !limits[i].Sound() || find(limits[:i], &limits[i]) >= 0 {
			return false
		}
	}
	return len(limits) > 0 && len(limits) <= Max
}

// versionOf returns the version of a set of limits.
func versionOf(limits []Limit) (v int32) {
	for i := range limits {
		v = max(v, limits[i].Version)
	}
	return v
}

// find returns the index of the limit that is the same as l, or -1.
func find(limits []Limit, l *Limit) int {
	return slices.IndexFunc(limits, func(m Limit) bool { return m.same(l) })
}
