package leak

import (
	"math"
	"time"
)

// steady is by how much bucket time may have fallen behind while it counts as real time.
const steady = time.Millisecond

// unsure is the Skip of a log of which nobody knows when the API's window began.
const unsure = time.Duration(math.MinInt64)

// sure reports whether the API's window of a Fixed limit is known, and will be when the dial has
// been behind real time for held longer: it then ends by the dial as it does by real time.
func (g *Log) sure(l *Limit, s *State, held time.Duration) bool {
	if l.Kind != Fixed || g.Skip == unsure || g.Longest > l.Window {
		return false
	}
	d := sub(add(s.Skip, held), g.Skip)
	return d <= steady && d >= -steady
}

// over reports whether all units of a Fixed limit count no more, because the API's window in which
// they went has ended, though a window has not passed since they went. That is so by real time,
// which the dial is behind after a hold or a slow-down.
func (g *Log) over(l *Limit, s *State) bool {
	// In a hold the dial may be ahead.
	return s.Rem <= 0 && g.sure(l, s, 0) && s.Dial() >= add(g.Begin, l.Window)
}

// back returns the dial time after which over holds, if nothing else happens. ok is false if that
// is not known: a slow dial falls further behind until then.
func (g *Log) back(l *Limit, s *State) (in time.Duration, ok bool) {
	if s.Speed < 1 || !g.sure(l, s, max(0, s.Rem)) {
		return 0, false
	}
	return max(0, sub(add(g.Begin, l.Window), s.Dial())), true
}

// begin finds out whether a call at a place begins the API's window of a Fixed limit. It surely
// does if it goes at once, and no other call still counts: a booked call may be moved, or given
// back. A call of the window's last two spreads may begin the API's next one: the API's window
// begins when its first call arrives, up to spread late, and Window is by spread longer than it;
// and this call travels, too.
func (g *Log) begin(l *Limit, place time.Duration, s *State) {
	if g.over(l, s) {
		g.Entries, g.sum = g.Entries[:0], 0
	}
	switch {
	case len(g.Entries) == 0 && place == s.Dial() && s.Rem <= 0:
		g.Begin, g.Skip = place, s.Skip
	case len(g.Entries) == 0 || place >= add(g.Begin, l.Window)-2*spread:
		g.Skip = unsure
	}
}

// unsteady makes the windows of Fixed limits unsure: the store's clock has gone back by a moment
// that the dial does not count.
func (s *State) unsteady(limits []Limit) {
	for i := range limits {
		if limits[i].Kind == Fixed {
			s.log(&limits[i]).Skip = unsure
		}
	}
}
