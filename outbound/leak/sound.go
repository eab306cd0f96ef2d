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
	return l.Level >= 0 && l.Level <= 1e15+9.3e9*of.Rate && math.Abs(l.Ret) < 1e25 && math.Abs(l.Top) <= 1e12
}
