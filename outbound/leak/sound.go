package leak

import (
	"math"
	"time"
)

// year100 is longer than any limit takes to drain.
const year100 = 100 * 366 * 24 * time.Hour

// Sound reports whether this package can have computed these numbers as those of a state. A
// store may read back anything.
func (s *State) Sound(limits []Limit, now time.Duration) bool {
	old, dial := sub(now, s.At), sub(s.Dial(), max(0, s.Rem)) // a hold may have let the dial run ahead
	if !(s.Speed >= MinSpeed && s.Speed <= 1) || s.Last < -BookingGrace || s.Last > farthest || s.Rem < -HoldMemory || s.Rem > farthest ||
		s.Fails < NoRefusalYet || s.Fails > 1e9 || !s.Row.sound() || old > year100 || old < -year100 || dial > farthest || dial < -farthest {
		return false
	}
	for i := range limits {
		if !s.Level[i].Sound(&limits[i]) {
			return false
		}
	}
	return s.Logs == nil || s.Logs.sound()
}

// maxLogs is the most logs of a key: workers may have limits of different kinds with one name.
const maxLogs = maxOthers + 2*Max

// sound reports the same of logs.
func (g *Logs) sound() bool {
	if len(*g) > maxLogs {
		return false
	}
	for i := range *g {
		if !(*g)[i].sound() {
			return false
		}
	}
	return true
}

// sound reports the same of a log.
func (g *Log) sound() bool {
	if g.known {
		return true
	}
	c := &g.Calendar
	if g.Kind == Leaky || g.Kind > Monthly || !(c.Least >= 0 && c.Least < 1e18) || len(g.Entries) > maxEntries || g.Unit < 0 || g.Unit > MaxUnit || g.Longest < 0 || g.Longest > year100 || !(math.Abs(g.Total) < 1e25) ||
		!(c.This >= 0 && c.This < 1e15 && c.Coming >= 0 && c.Coming < 1e15) || c.End != 0 && !(&Period{c.Begin, c.End, c.Next, c.Next + 1}).sound() {
		return false
	}
	for i := range g.Entries {
		e := &g.Entries[i]
		if !(e.Units >= 0 && e.Units < 1e15) || e.Last < -farthest || e.Last > farthest || e.First < -farthest || e.First > e.Last+1 ||
			e.Aged < 0 || e.Aged > farthest || i > 0 && e.from() < g.Entries[i-1].from() {
			return false
		}
	}
	g.count()
	g.known = true
	return true
}

// sound reports the same of a row. Until may be anything: [Row.pass] bounds it.
func (r *Row) sound() bool {
	if r.Top == 0 {
		return *r == Row{}
	}
	return r.Top >= MinSpeed && r.Top <= 1 && r.Calls >= 0 && r.Calls <= mostCalls && r.Refused >= 0 && r.Refused <= mostRefused &&
		r.Per >= 0 && r.Per <= mostCalls && r.Fast >= 0 && r.Fast <= 1 && r.Trust >= -3 && r.Trust <= trusted
}

// Sound reports the same of a level: it is no more than can be booked ahead and a thousand
// calls of the largest cost. A level that is wrong and less may shut a key for long; a Resume
// opens it.
func (l *Level) Sound(of *Limit) bool {
	if of.Kind != Leaky { // its log tells
		return l.Level >= 0 && l.Level < 1e18 && l.Ret >= 0 && l.Ret < 9e18 && l.Top >= 0 && l.Top < 9e18
	}
	return l.Level >= 0 && l.Level <= 1e15+9.3e9*of.Rate && math.Abs(l.Ret) < 1e25 && math.Abs(l.Top) <= 1e12
}
