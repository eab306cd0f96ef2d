// Package spec makes limits, finds what is wrong with them, and reads and writes their text. It
// translates them into the limits of stores and of calls in flight. Package outbound has the docs.
package spec

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/internal/slots"
	"github.com/dripfeed/dripfeed/outbound/store"
)

const (
	// MaxLimits is how many limits a bucket has at most.
	MaxLimits = 8
	// MaxCapacity is in units: above it a float64 loses small costs.
	MaxCapacity = 1e12
	// Jitter is what the network may take off the distance of two calls.
	Jitter = 10 * time.Millisecond
	// MaxWindow is the longest window: 100 years.
	MaxWindow = time.Duration(maxDrain * 1e9)

	maxLeakRate = 1e12                     // units per second
	maxDrain    = 100 * 365.25 * 24 * 3600 // seconds: capacity / leak rate, and every wait, stays inside time.Duration
	minWindow   = time.Millisecond
	maxWait     = time.Duration(math.MaxInt64)

	units = store.MaxUnit + 1 // that a cost has
)

// Limit is a limit of package outbound, with what that does not export.
type Limit struct {
	Capacity, LeakRate float64
	Unit               int
	Name               string
	Version            int
	Form
}

// Form is the rest of a limit.
type Form struct {
	N        float64 // of Per: so many; of calls in flight: the most of a limit that adapts
	Kind     store.Kind
	InFlight bool

	window time.Duration // in any window of this length
	zone   string        // the name of a calendar's time zone
	flaw   string        // what a method found wrong; Check reports it
	made   [2]float64    // the Capacity and the LeakRate that a function has set; zero in a literal
}

// Per spaces n calls in a window of this length evenly.
func Per(n float64, window time.Duration) Limit {
	l := Limit{Capacity: 1, LeakRate: n / (window + Jitter).Seconds(), Form: Form{N: n, window: window}}
	switch {
	case !(n > 0) || math.IsInf(n, 0):
		l.flaw = Number(n) + " per " + Short(window) + ": the number has to be finite and above 0"
	case window <= 0 || window > maxWait-Jitter:
		l.flaw = fmt.Sprintf("Per needs a window above 0 and below 292 years, not %v", window)
	}
	return l.intact()
}

// Burst is a limit of Per with a capacity of b units.
func (l Limit) Burst(b float64) Limit {
	switch {
	case l.flaw != "":
	case l.Kind != store.Leaky:
		l.flaw = "Burst is for limits that space calls evenly: all of " + digits(l.Capacity) + l.shape() + " may leave in one burst without it"
	case l.window == 0:
		l.flaw = "Burst is for Per, PerSecond, PerMinute and PerHour: set Capacity instead"
	case b != 1 && !(b > 1 && b <= l.N):
		l.flaw = fmt.Sprintf("Burst needs a number from 1 to %s, not %s", Number(max(1, l.N)), Number(b))
		if b > l.N && b <= MaxCapacity {
			l.flaw += fmt.Sprintf("; if an API admits %s in one burst and %s per second later, write Limit{Capacity: %[1]s, LeakRate: %[2]s}",
				Number(b), Number(l.N/l.window.Seconds()))
		}
	default:
		l.Capacity = b
		l.LeakRate = (l.N - (b - 1)) / (l.window + Jitter).Seconds() // exactly that of Per for a b of 1
		l = l.intact()
	}
	return l
}

// InFlight is a limit on calls in flight.
func InFlight(n float64) Limit {
	return Limit{Capacity: n, Form: Form{InFlight: true}}.intact()
}

// Lease is a limit on calls in flight with another lease.
func (l Limit) Lease(d time.Duration) Limit {
	switch {
	case l.flaw != "":
	case !l.InFlight:
		l.flaw = "Lease is for InFlight"
	case l.N != 0:
		l.flaw = adaptiveHere
	case d < store.MinLease || d > store.MaxLease:
		l.flaw = fmt.Sprintf("a lease is 3 s to 1 h, not %v", d)
	case d == store.DefaultLease:
		l.window = 0
	default:
		l.window = d
	}
	return l
}

// Adaptive is a limit on calls in flight that finds its number.
func (l Limit) Adaptive() Limit {
	switch {
	case l.flaw != "":
	case !l.InFlight:
		l.flaw = "Adaptive is for InFlight"
	case l.window != 0:
		l.flaw = adaptiveHere
	default:
		l.N = l.Capacity
	}
	return l
}

const adaptiveHere = "Adaptive is for a bucket in this process, without a Lease"

// Window is a limit of n units in a window of this kind. name is what a flaw calls it.
func Window(kind store.Kind, name string, n float64, window time.Duration) Limit {
	l := Limit{Capacity: n, Form: Form{window: window, Kind: kind}}
	if l.flaw = flawOfNumber(name, n); l.flaw == "" && (window < minWindow || window > MaxWindow) {
		l.flaw = fmt.Sprintf("%s needs a window of 1 ms to 100 years, not %v", name, window)
	}
	if l.flaw == "" {
		l.LeakRate = n / (window + Jitter).Seconds()
		if law := l.Law(); !law.Sound() {
			l.flaw = fmt.Sprintf("%s cannot count %s in %v: that is above 1e12 per second, or next to nothing", name, Number(n), window)
		}
	}
	return l.intact()
}

// Calendar is a limit of n units in each period of this kind. name is what a flaw calls it.
func Calendar(kind store.Kind, name string, n float64, zone *time.Location) Limit {
	l := Limit{Capacity: n, Form: Form{Kind: kind}}
	if l.flaw = flawOfNumber(name, n); l.flaw == "" && kind != store.Hourly {
		if l.zone, l.flaw = calendar.Name(zone); l.flaw != "" {
			l.flaw = name + ": " + l.flaw
		}
	}
	return l.intact()
}

// From is a limit whose months or weeks begin on this day.
func (l Limit) From(day int) Limit {
	if l.flaw == "" {
		l.zone, l.flaw = calendar.Anchor(l.Kind, l.zone, day)
	}
	return l
}

// flawOfNumber returns what is wrong with the number of units of a window or a period, or "".
func flawOfNumber(name string, n float64) string {
	if !(n > 0 && n <= MaxCapacity) {
		return name + " needs a number above 0 and at most 1e12, not " + Number(n)
	}
	return ""
}

// Of is the limit for this unit, under this name.
func (l Limit) Of(unit int, name string) Limit {
	l.Unit, l.Name = unit, name
	return l
}

// Each returns n and the window of a limit that has them, or zeros.
func (l Limit) Each() (n float64, window time.Duration) {
	switch {
	case l.Kind == store.Window || l.Kind == store.Fixed:
		return l.Capacity, l.window
	case l.InFlight:
		return 0, 0
	}
	return l.N, l.window
}

// Check returns what is wrong with the limit, or "".
func (l Limit) Check() string {
	switch {
	case l.flaw != "":
		return l.flaw
	case !(l.Capacity > 0 && l.Capacity <= MaxCapacity):
		return "capacity " + Number(l.Capacity) + " is not above 0 and at most 1e12"
	case !utf8.ValidString(l.Name):
		return "its name " + Quote(l.Name) + " is not valid UTF-8"
	case l.Unit < 0 || l.Unit >= units:
		return fmt.Sprintf("unit %d is not one of 0 to %d", l.Unit, units-1)
	case l.Kind == store.Leaky && !l.InFlight && !(l.LeakRate > 0 && l.LeakRate <= maxLeakRate):
		return "leak rate " + Number(l.LeakRate) + " is not above 0 and at most 1e12 units per second"
	case l.Version < 0 || l.Version > math.MaxInt32:
		return fmt.Sprintf("version %d is not one of 0 to %d", l.Version, math.MaxInt32)
	case l.made != [2]float64{} && l.made != l.intact().made:
		return "the Capacity or the LeakRate of " + l.says() + " was changed: make the limit again"
	case l.InFlight || l.Kind == store.Hourly:
		return ""
	case l.Kind.Calendar():
		_, _, flaw := calendar.Parse(l.Kind, l.zone)
		return flaw
	case l.Kind == store.Leaky && l.Capacity/l.LeakRate > maxDrain:
		return "it drains in more than 100 years"
	case l.Kind == store.Leaky && l.Capacity/l.LeakRate < 1e-9:
		return "it drains in less than a nanosecond, which no clock can measure"
	}
	return ""
}

// intact notes the numbers that a function has set.
func (l Limit) intact() Limit {
	l.made = [2]float64{l.Capacity, l.LeakRate}
	return l
}

// CheckAll returns what is wrong with the limits of a bucket, which may be shared, or "". It also
// returns the limit that is wrong, or nil if all of them together are.
func CheckAll(all []Limit, shared bool) (bad *Limit, flaw string) {
	if len(all) == 0 || len(all) > MaxLimits {
		return nil, fmt.Sprintf("a bucket has 1 to %d limits, not %d", MaxLimits, len(all))
	}
	inFlight := 0
	for i := range all {
		l := &all[i]
		if flaw := l.Check(); flaw != "" {
			return l, flaw
		}
		if l.InFlight {
			if inFlight++; shared && l.N != 0 {
				return l, adaptiveHere
			}
		}
	}
	if inFlight > 1 {
		return nil, "a bucket has at most one InFlight"
	}
	for i := range all {
		l := &all[i]
		if k := slices.IndexFunc(all[:i], l.same); k >= 0 {
			return l, "two limits of one unit, " + Quote(all[k].Label()) + " and " + Quote(l.Label()) + ", need different names: name them, or leave one out"
		}
	}
	return nil, ""
}

// same reports whether both limits are one to a key and to a reader of its metrics.
func (l Limit) same(m Limit) bool {
	alike := l.Name == "" && m.Name == "" && l.Kind == m.Kind && l.shape() == m.shape()
	return l.Unit == m.Unit && l.InFlight == m.InFlight && (alike || l.Label() == m.Label())
}

// Law returns the limit as a store has it.
func (l Limit) Law() store.Limit {
	m := store.Limit{Name: l.Name, Unit: int8(l.Unit), Kind: l.Kind, Capacity: l.Capacity, Rate: l.LeakRate, Window: l.window, Zone: l.zone, Version: int32(l.Version)}
	if l.Name == "" {
		m.Name, m.Unnamed = l.shape(), true
	}
	switch {
	case l.window <= 0:
	case l.Kind != store.Leaky:
		m.Window += Jitter
	default:
		m.N = l.N
	}
	return m
}

// OfLaw is the inverse of Law.
func OfLaw(l *store.Limit) Limit {
	m := Limit{Capacity: l.Capacity, LeakRate: l.Rate, Unit: int(l.Unit), Name: l.Name, Version: int(l.Version), Form: Form{window: l.Window, zone: l.Zone, Kind: l.Kind}}
	if l.Unnamed {
		m.Name = ""
	}
	switch {
	case l.Window <= 0:
	case l.Kind != store.Leaky:
		m.window -= Jitter
	case l.Window > maxWait-Jitter || l.N == 0:
		m.window = 0
	default:
		m.N = l.N
	}
	if m.window != 0 || m.Kind != store.Leaky {
		m = m.intact()
	}
	return m
}

// Law returns limits as stores know them, except for one on calls in flight, which package store
// does not count.
func Law(all []Limit) (law []store.Limit) {
	for i := range all {
		if l := &all[i]; !l.InFlight {
			law = append(law, l.Law())
		}
	}
	return law
}

// Slots returns the limit on calls in flight among the limits, or nil.
func Slots(all []Limit) *slots.Limit {
	if i := slices.IndexFunc(all, func(l Limit) bool { return l.InFlight }); i >= 0 {
		l := &all[i]
		return &slots.Limit{Most: int(l.Capacity), Ceiling: int(l.N), Lease: cmp.Or(l.window, store.DefaultLease), Unit: l.Unit, Name: l.Name, Version: l.Version}
	}
	return nil
}

// OfSlots returns a limit on calls in flight.
func OfSlots(l *slots.Limit) Limit {
	m := Limit{Capacity: float64(l.Most), Unit: l.Unit, Name: l.Name, Version: l.Version, Form: Form{N: float64(l.Ceiling), InFlight: true}}
	if l.Lease != store.DefaultLease {
		m.window = l.Lease
	}
	return m.intact()
}

// All is the inverse of Law and Slots. inFlight may be nil.
func All(law []store.Limit, inFlight *slots.Limit) []Limit {
	all := make([]Limit, len(law), MaxLimits)
	for i := range all {
		all[i] = OfLaw(&law[i])
	}
	if inFlight != nil {
		all = append(all, OfSlots(inFlight))
	}
	return all
}
