package key

import (
	"slices"
	"time"
	"unicode/utf8"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Limits are the limits of a key. They never change.
type Limits struct {
	Law      []store.Limit
	Calendar *calendar.Calendar // nil without a calendar quota
	Open     bool               // no call fills them: see noLimit
	Opens    bool               // a window frees many units at a time
	parts    bool               // a limit needs State.Parts to say when it has capacity
	first    int                // the index of the limit of the lowest unit
}

// noLimit is the limit of a key that counts only holds. No call fills it.
var noLimit = store.Limit{Capacity: 1e12, Rate: 1e12, Name: "\x00none"}

// NewLimits returns limits for a key. If there are none, the key counts only holds.
func NewLimits(law []store.Limit) Limits {
	if len(law) == 0 {
		law = []store.Limit{noLimit}
	}
	s := Limits{Law: law, Calendar: calendar.New(law), Open: Open(law)}
	for i := range law {
		parted := law[i].Parted()
		s.parts, s.Opens = s.parts || parted, s.Opens || parted && law[i].Window > 0
		if law[i].Unit < law[s.first].Unit {
			s.first = i
		}
	}
	return s
}

// Open reports whether no call fills these limits.
func Open(law []store.Limit) bool { return len(law) == 1 && law[0].Name == noLimit.Name }

// Counts returns the limits that calls fill.
func (s *Limits) Counts() []store.Limit {
	if s.Open {
		return nil
	}
	return s.Law
}

// Units returns what a cost takes of each limit.
func (s *Limits) Units(c *reports.Numbers) store.Units { return unitsOf(s.Counts(), c) }

func unitsOf(law []store.Limit, c *reports.Numbers) (n store.Units) {
	for i := range law {
		n[i] = law[i].Takes(max(0, c[law[i].Unit]))
	}
	return n
}

// Fit writes what a cost takes of each limit. It reports whether the cost takes something, and all
// limits can admit it.
func (s *Limits) Fit(c *reports.Numbers, n *store.Units) bool {
	fills, law := false, s.Counts()
	for i := range law {
		l := &law[i]
		if u := c[l.Unit]; u > 0 {
			u = l.Takes(u)
			if n[i], fills = u, true; u > l.Capacity {
				return false
			}
		}
	}
	return fills && c[law[s.first].Unit] != 0
}

// Misfit returns the limit that can never admit a call of this cost, or nil. The
// call keeps a fraction of each limit free. If lacks is true, the cost has no number for the limit,
// which is the one of the lowest unit. Otherwise the cost is above its capacity.
func (s *Limits) Misfit(c *reports.Numbers, headroom float64) (l *store.Limit, lacks bool) {
	law := s.Counts()
	if len(law) > 0 && c[law[s.first].Unit] == 0 {
		return &law[s.first], true
	}
	for i := range law {
		l := &law[i]
		if n := l.Takes(c[l.Unit]); n > l.Capacity || n > 0 && headroom > 0 && n+l.Headroom(headroom) > l.Capacity {
			return l, false
		}
	}
	return nil, false
}

// Lacks reports whether a cost is above the capacity of a limit, with a fraction that stays free.
func (s *Limits) Lacks(c *reports.Numbers, headroom float64) bool {
	n := s.Units(c)
	n = store.Needs(s.Law, &n, headroom)
	for i := range s.Law {
		if n[i] > s.Law[i].Capacity {
			return true
		}
	}
	return false
}

// Period returns the real time from a Unix time until the next period of the limit i begins. ok is
// false if the limit has none.
func (s *Limits) Period(i int, unix time.Duration) (next time.Duration, ok bool) {
	if s.Calendar == nil {
		return 0, false
	}
	p := s.Calendar.At(unix)[i]
	return max(0, time.Duration(p.End)*time.Second+store.Slack-unix), p.End != 0
}

// align returns a charge that was booked by other limits as one by these. Limits that are the same
// keep what the charge says of them. Another one counts the call as its cost says. A limit that has
// come since returns nothing, because the charge's Number is too low.
func (s *Limits) align(c *store.Charge, by []store.Limit, cost *reports.Numbers) *store.Charge {
	if by == nil || store.Same(by, s.Law) {
		return c
	}
	d := *c
	d.N, d.Y, d.Up = s.Units(cost), store.Units{}, store.Units{}
	for i := range s.Law {
		for j := range by {
			if store.Same(s.Law[i:i+1], by[j:j+1]) {
				d.N[i], d.Y[i], d.Up[i] = c.N[j], c.Y[j], c.Up[j]
			}
		}
	}
	return &d
}

// sound reports whether a key can have these limits.
func sound(law []store.Limit) bool {
	for i := range law {
		l := &law[i]
		if !l.Sound() || !utf8.ValidString(l.Name) || slices.ContainsFunc(law[:i], func(m store.Limit) bool { return store.Same(law[i:i+1], []store.Limit{m}) }) {
			return false
		}
		if l.Kind > store.Hourly {
			if _, _, flaw := calendar.Parse(l.Kind, l.Zone); flaw != "" {
				return false
			}
		}
	}
	return len(law) > 0 && len(law) <= store.Max
}

// Force is what a process knows of the limits that count. It never changes.
type Force struct {
	Limits
	number int64         // of the latest reply, or 0
	born   time.Duration // the life of the key, with this number
}

// One returns what is in force of a key in this process whose only limit is a leaky one.
func One(l store.Limit) *Force {
	one := &struct { // in one allocation
		Force
		law [1]store.Limit
	}{law: [1]store.Limit{l}}
	one.Force = Force{Limits: Limits{Law: one.law[:]}, number: firstNumber}
	return &one.Force
}

// learn returns what is in force after a reply to a step that counted by f. mine are the limits
// that the key was made with.
func (f *Force) learn(r *store.Reply, mine *Limits, remote bool) (*Force, error) {
	if r.Number == 0 || len(r.Limits) == 0 && (!remote || r.Number != f.number || f.born == r.State.Born) {
		return f, nil
	}
	next := &Force{number: r.Number, born: r.State.Born}
	switch {
	case len(r.Limits) == 0 || store.Equal(r.Limits, f.Law):
		next.Limits = f.Limits
	case store.Equal(r.Limits, mine.Law):
		next.Limits = *mine
	case !sound(r.Limits):
		return f, ErrLimits
	default:
		next.Limits = NewLimits(slices.Clone(r.Limits))
	}
	return next, nil
}
