package fallback

import (
	"math"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// century is as long as a limit may take to drain.
const century = 876_600 * time.Hour

// dated reports whether one of the limits counts by the calendar.
func dated(limits []leak.Limit) bool {
	return slices.ContainsFunc(limits, func(l leak.Limit) bool { return l.Kind.Calendar() })
}

// shrink makes a limit this worker's share of it.
func (s *Store) shrink(l *leak.Limit) {
	if l.Kind == leak.Fixed { // the windows of workers begin at different times, and their sum is to fit into any
		l.Kind = leak.Moving
	}
	if s.Unlimited {
		l.Capacity, l.Rate = unlimited, unlimited
		if l.Kind == leak.Moving {
			l.Capacity = unlimited * min(1, l.Window.Seconds())
		}
	} else {
		s.divide(l)
	}
	switch {
	case l.Kind == leak.Moving:
		l.Rate = l.Capacity / l.Window.Seconds()
	case l.Kind.Calendar():
		l.Rate = 0
	}
}

// divide makes a limit the Share of it. If that is less than a unit, it is a whole unit that
// comes back as seldom as the Share says. Of a calendar it stays less: a unit of each period
// would be more often.
func (s *Store) divide(l *leak.Limit) {
	least := min(1, l.Capacity)
	l.Capacity *= s.Share
	l.Rate *= s.Share
	if whole := math.Round(l.Capacity); whole > l.Capacity && whole <= l.Capacity*(1+0.5e-9) {
		l.Capacity = whole // a 49th of 49 is 1, but for rounding
	}
	switch {
	case l.Kind.Calendar():
		l.Capacity = max(l.Capacity, math.SmallestNonzeroFloat64) // no limit has a capacity of 0
	case l.Capacity < least:
		sec := min(least/l.Rate, century.Seconds())
		l.Capacity, l.Rate = least, least/sec
		if l.Kind == leak.Moving {
			l.Window = time.Duration(sec * 1e9)
		}
	}
}

// level returns what is in a worker's share of a limit when the outage begins: all of it,
// so that the switch causes no burst. Of a calendar it is the part that was used when the
// store last told, because all of it would come back only at the reset.
func (s *Store) level(key string, l *leak.Limit) float64 {
	if s.Unlimited {
		return 0
	}
	if used, ok := s.used(key, l); ok {
		return used * l.Capacity
	}
	return l.Capacity
}

// used returns the part of a calendar's period that was used when the store last told. It
// reports false if the limit is no calendar, or the store has not told.
func (s *Store) used(key string, l *leak.Limit) (part float64, ok bool) {
	if !l.Kind.Calendar() {
		return 0, false
	}
	last := s.levels[key]
	i := leak.Find(last.limits, l)
	if i < 0 || last.limits[i].Kind != l.Kind || last.limits[i].Zone != l.Zone {
		return 0, false
	}
	if now() >= later(last.at, time.Duration(last.levels[i].Top)) { // the next period has begun
		return 0, true
	}
	return min(1, last.levels[i].Level/last.limits[i].Capacity), true
}

// inPeriod returns the units of a calendar that this process's period has, and reports
// whether the key knows the calendar.
func (k *degradedKey) inPeriod(l *leak.Limit) (units float64, ok bool) {
	if k.stored.State.Logs == nil {
		return 0, false
	}
	for i := range *k.stored.State.Logs {
		g := &(*k.stored.State.Logs)[i]
		if g.Unit != l.Unit || g.Name != l.Name {
			continue
		}
		switch c, t := &g.Calendar, unix(); {
		case t < ends(c.End):
			return c.This, true
		case t < ends(c.Next):
			return c.Coming, true
		}
		return 0, true
	}
	return 0, false
}

// ends returns the Unix time at which the law goes on to the period after an end.
func ends(end int64) time.Duration { return time.Duration(end)*time.Second + leak.Slack }

// begin gives a key the share i of a debt, which is new to it, with so many units in it.
// Those of a window come back all at once, a window from now: a window lets all of its calls go
// at once, and other workers may have had theirs just before the store went away.
func (k *degradedKey) begin(d *debt, i int, units float64) {
	l, state := &d.share[i], &k.stored.State
	o := leak.Other{Limit: *l, Level: leak.Level{Level: units}, Dial: state.Dial()}
	if l.Kind == leak.Leaky {
		o.Dial = 0
	} else {
		g := leak.Log{Name: l.Name, Unit: l.Unit, Kind: l.Kind, Zone: l.Zone, Longest: l.Window, Total: units}
		if l.Kind.Calendar() {
			p := &d.periods[i]
			g.Calendar = leak.Calendar{Begin: p.Begin, End: p.End, Next: p.Next, This: units}
			if unix() >= ends(p.End) {
				g.Calendar.Begin, g.Calendar.End, g.Calendar.Next = p.End, p.Next, p.After
			}
		} else if units > 0 {
			g.Entries = []leak.Entry{{First: o.Dial, Last: o.Dial, Units: units}}
			o.Level.Top, o.Level.Ret = float64(l.Window), float64(l.Window)
		}
		if state.Logs == nil {
			state.Logs = new(leak.Logs)
		}
		*state.Logs = append(*state.Logs, g)
	}
	k.stored.Others = append(k.stored.Others, o)
}

// prolong has all that is in the windows of a debt's share come back a window from now: what an
// outage from before has put in was no call, and other workers may have used its room since.
func (k *degradedKey) prolong(d *debt) {
	if k.stored.State.Logs == nil {
		return
	}
	now := k.stored.State.Dial()
	for i := range *k.stored.State.Logs {
		g := &(*k.stored.State.Logs)[i]
		shared := func(l leak.Limit) bool { return l.Kind == leak.Moving && l.Unit == g.Unit && l.Name == g.Name }
		if g.Kind.Calendar() || !slices.ContainsFunc(d.share, shared) {
			continue
		}
		n := 0 // entries but for those of booked calls
		for n < len(g.Entries) && g.Entries[n].Last <= now {
			n++
		}
		if n == 0 {
			continue
		}
		all := leak.Entry{First: min(g.Entries[0].First, now), Last: now}
		for _, e := range g.Entries[:n] {
			all.Units += e.Units
		}
		g.Entries = append([]leak.Entry{all}, g.Entries[n:]...)
	}
}
