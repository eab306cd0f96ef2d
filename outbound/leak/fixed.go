package leak

import (
	"math"
	"time"
)

// steady is by how much bucket time may have fallen behind while it counts as real time.
const steady = time.Millisecond

// unsure is the Skip of a log of which nobody knows when the API's window began.
const unsure = time.Duration(math.MinInt64)

// over reports whether all units of a Fixed limit count no more, because the API's window in which
// they went has ended, though a window has not passed since they went. That is so by real time, which the
// dial is behind after a hold or a slow-down.
func (g *Log) over(l *Limit, s *State) bool {
	if l.Kind != Fixed || g.Skip == unsure || s.Rem > 0 { // in a hold the dial may be ahead
		return false
	}
	d := sub(s.Skip, g.Skip)
	return d <= steady && d >= -steady && g.Longest <= l.Window && s.Dial() >= add(g.Begin, l.Window)
}

// begin finds out whether a call at a place begins the API's window of a Fixed limit. It surely does
// if it goes at once, and no other call still counts: a booked call may be moved, or given back. A call
// of the window's last two spreads may begin the API's next one: the API's window begins when its first
// call arrives, up to spread late, and Window is by spread longer than it; and this call travels, too.
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

// unsteady makes the windows of Fixed limits unsure: the store's clock has gone back by a moment that
// the dial does not count.
func (s *State) unsteady(limits []Limit) {
	for i := range limits {
		if limits[i].Kind == Fixed {
			s.log(&limits[i]).Skip = unsure
		}
	}
}
