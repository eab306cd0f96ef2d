package leak

import (
	"slices"
	"time"
)

const (
	// parts is how many parts a window has. What was filled in one of them counts until a
	// window after the last of it.
	parts = 64
	// maxEntries is the most entries of a log: those of the past window, and as many
	// bookings, or units that a hold has put in.
	maxEntries = 2 * parts
	// spread is by how much the network, and a caller that is late, may move two calls closer
	// together or further apart. The Window of a limit is as much longer than the API's.
	spread = 10 * time.Millisecond
)

// Log is what a key keeps of a limit that is no leaky one: which units were filled when. Limits of
// one name and unit share a log if both are windows, or calendars of one Kind and Zone. The zero
// value with these fields is an empty log.
type Log struct {
	Name string
	Unit int32
	Kind Kind   // by which the entries count
	Zone string `json:",omitzero"` // of a calendar
	// Longest is the longest window of the workers that use the limit. The log keeps entries
	// for as long.
	Longest time.Duration
	// Begin is the place at which the API's window of a Fixed limit began, and Skip how far
	// bucket time was behind real time there. Skip is unsure if nobody knows.
	Begin, Skip time.Duration
	// Beside is the place of the last booking that is not in the log, or a later one.
	Beside time.Duration
	// Total is the units that were filled in this life, and not undone. It tells whether
	// anything was filled since a call: each fill adds so much that it cannot be lost in rounding.
	Total float64
	// Entries are those of a window, in the order of their places.
	Entries []Entry
	// Calendar is the state of a limit that counts by the calendar.
	Calendar Calendar `json:",omitzero"`

	sum   float64 // of Entries, if known
	known bool    // the log is as this package has left it in memory
}

// log returns the log of limit l, and makes it if there is none.
func (s *State) log(l *Limit) *Log {
	if s.Logs == nil {
		s.Logs = new(Logs)
	}
	if g := s.Logs.find(l); g != nil {
		return g
	}
	*s.Logs = append(*s.Logs, Log{Name: l.Name, Unit: l.Unit, Kind: l.Kind, Zone: l.Zone, Skip: unsure, Beside: add(s.Dial(), s.Last)})
	return &(*s.Logs)[len(*s.Logs)-1]
}

// logs makes the logs of limits that have none yet.
func (s *State) logs(limits []Limit) {
	for i := range limits {
		if limits[i].Kind != Leaky {
			s.log(&limits[i])
		}
	}
}

// Logs are the logs of a key.
type Logs []Log

// find returns the log of limit l, or nil.
func (g *Logs) find(l *Limit) *Log {
	if g == nil {
		return nil
	}
	for i := range *g {
		if h := &(*g)[i]; h.of(l) {
			return h
		}
	}
	return nil
}

// of reports whether the log is that of limit l.
func (g *Log) of(l *Limit) bool {
	return g.Unit == l.Unit && g.Name == l.Name && together(g.Kind, l.Kind, g.Zone, l.Zone)
}

// clone returns a copy that shares nothing with the logs.
func (g *Logs) clone() *Logs {
	if g == nil {
		return nil
	}
	c := slices.Clone(*g)
	for i := range c {
		c[i].Entries = slices.Clone(c[i].Entries)
	}
	return &c
}

// drop takes the logs of a limit's name and unit out.
func (g *Logs) drop(l *Limit) {
	if g != nil {
		*g = slices.DeleteFunc(*g, func(h Log) bool { return h.Unit == l.Unit && h.Name == l.Name })
	}
}

// fits reports whether n more units fit, but for the rounding of sums.
func (l *Limit) fits(sum float64) bool { return sum <= l.Capacity*(1+0.5e-9) }

// count adds the entries up.
func (g *Log) count() {
	g.sum = 0
	for i := range g.Entries {
		g.sum += g.Entries[i].Units
	}
}

// wait returns the first dial time from now, not before w, at which n units have room. All
// places are at dial + w or before.
func (g *Log) wait(l *Limit, n float64, w time.Duration, s *State) time.Duration {
	if g.over(l, s) {
		return w
	}
	return g.moves(l, n, w, s)
}

// moves is wait by all entries.
func (g *Log) moves(l *Limit, n float64, w time.Duration, s *State) time.Duration {
	sum := g.sum + n
	for i := range g.Entries {
		if l.fits(sum) {
			break
		}
		e := &g.Entries[i]
		w = max(w, sub(e.end(l), s.Dial()))
		sum -= e.Units
	}
	return w
}

// fill takes n units at a place, which is not before any other. Before it, the log forgets what
// ended before now, or before the hold in force began.
func (g *Log) fill(l *Limit, n float64, place time.Duration, s *State) {
	g.took(n)
	g.forget(l, s.Dial()-max(0, s.Rem))
	if l.Kind == Fixed {
		g.begin(l, place, s)
	}
	g.put(place, n, l.Window/parts)
}

// rounding bounds what the rounding of sums changes of a Total, as a share of it.
const rounding = 4e-15

// took adds units to the total, or more if the sum would hide them.
func (g *Log) took(n float64) {
	g.Total += max(n, 4*rounding*g.Total)
}

// forget drops what has ended at the dial time from, for the longest window in use.
func (g *Log) forget(l *Limit, from time.Duration) {
	g.Longest = max(g.Longest, l.Window)
	gone := 0
	for gone < len(g.Entries) && add(g.Entries[gone].from(), g.Longest) <= from {
		gone++
	}
	switch {
	case gone == 0:
	case gone == len(g.Entries):
		g.Entries, g.Longest, g.sum = g.Entries[:0], l.Window, 0
	default:
		g.Entries = g.Entries[:copy(g.Entries, g.Entries[gone:])]
		g.count() // a difference would keep what a sum with a huge settle has lost
	}
}

// find returns the index of the entry that has the units of a call at a place, or -1.
func (g *Log) find(place time.Duration) int {
	for i := len(g.Entries) - 1; i >= 0; i-- {
		switch e := &g.Entries[i]; {
		case e.marks(): // it has no place
		case e.Last < place:
			return -1
		case e.First <= place:
			return i
		}
	}
	return -1
}

// settle makes n units of a call at a place into used. What the call did not use comes back
// whole: what never went out was never there. goes says that the call takes something of another
// limit.
func (g *Log) settle(l *Limit, place time.Duration, n, used float64, goes bool, now time.Duration) {
	i := g.find(place)
	if i < 0 {
		if used > n && add(place, l.Window) > now {
			g.put(place, used-n, 0)
			g.Skip = unsure
		}
		return
	}
	e := &g.Entries[i]
	e.Units = max(0, e.Units+used-n)
	defer g.count()
	if used == 0 && place == g.Begin {
		g.Skip = unsure // the API's window may have begun with any of the others
	}
	if e.Units <= l.Capacity*0.5e-9 {
		g.Entries = slices.Delete(g.Entries, i, i+1)
		if goes {
			g.Beside = max(g.Beside, place)
		}
	}
}

// undo takes the units of the last booking out, of which before is the place of the booking
// before it.
func (g *Log) undo(l *Limit, place, before time.Duration, n float64) {
	g.Total -= n
	i := g.find(place)
	if i < 0 {
		return
	}
	defer g.count()
	if e := &g.Entries[i]; e.Units-n > l.Capacity*0.5e-9 {
		e.Units -= n
		g.cut(i, before)
	} else {
		g.Entries = slices.Delete(g.Entries, i, i+1)
	}
	if place == g.Begin {
		g.Skip = unsure
	}
}

// drip brings the log, where it holds less, to what units that were filled evenly over the
// window that ends at the dial time until would have left: when they end, calls go evenly.
func (g *Log) drip(l *Limit, units float64, until time.Duration) {
	var all [2 * maxEntries]Entry
	from := len(all) // all is filled from its end, the latest first
	j, have := len(g.Entries)-1, 0.
	take := func(after time.Duration) {
		for ; j >= 0 && g.Entries[j].from() > after; j-- {
			from--
			all[from] = g.Entries[j]
			have += g.Entries[j].Units
		}
	}
	take(until) // they end after all that follows
	part := l.Window / parts
	for k := range time.Duration(parts) {
		at := until - k*part
		held := from
		take(at - part)
		if more := units*float64(k+1)/parts - have; more > l.Capacity*0.5e-9 {
			copy(all[from-1:], all[from:held]) // the marker ends last of this part
			from--
			all[held-1] = marker(at, more)
			have += more
		}
	}
	rest := append(g.Entries[:j+1:j+1], all[from:]...)
	g.Entries = append(g.Entries[:0], rest...)
	for len(g.Entries) > maxEntries {
		g.merge()
	}
	g.count()
	g.Skip = unsure // the API's window may have ended with the refusal
}

// void takes out what is booked for later than the dial time until.
func (g *Log) void(until time.Duration) {
	g.Entries = slices.DeleteFunc(g.Entries, func(e Entry) bool { return !e.marks() && e.First > until })
	if n := len(g.Entries); n > 0 && !g.Entries[n-1].marks() {
		g.cut(n-1, until)
	}
	g.count()
}

// resume takes out the bookings, which are those after the dial time now, and the markers. The
// dial then goes back by the rest of a hold, in which nothing ages: nothing that has gone counts
// as later. at is State.At.
func (g *Log) resume(now, held, at time.Duration) {
	g.Calendar.resume(add(at, g.Calendar.Off))
	g.reopen(now, held)
}

// reopen is resume for a window.
func (g *Log) reopen(now, held time.Duration) {
	at := max(-farthest, sub(now, held))
	short := sub(at, sub(now, held)) // it goes back no further
	g.void(now)
	g.Entries = slices.DeleteFunc(g.Entries, func(e Entry) bool { return e.marks() })
	for i := range g.Entries {
		e := &g.Entries[i]
		from := min(add(e.from(), short), at)
		e.First, e.Last = min(e.First, at), min(e.Last, at)
		e.Aged = max(0, e.Last-from)
	}
	g.Skip, g.Beside = unsure, at
	g.count()
}

// booked returns the units that are booked for later than the dial time now.
func (g *Log) booked(now time.Duration) (n float64) {
	for i := range g.Entries {
		if e := &g.Entries[i]; !e.marks() && e.First > now {
			n += e.Units
		}
	}
	return n
}

// raise brings what counts of the log at the dial time now up to a level, with an entry at a place.
func (g *Log) raise(l *Limit, level float64, place, now time.Duration) {
	more := level
	for i := range g.Entries {
		if e := &g.Entries[i]; e.end(l) > now {
			more -= e.Units
		}
	}
	if more > l.Capacity*0.5e-9 {
		g.put(place, more, 0)
		g.Skip = unsure
	}
}

// level returns what counts of the log now: the units, and in how much bucket time, or real
// time, the first and the last of them go.
func (g *Log) level(l *Limit, s *State) (units float64, next, empty time.Duration) {
	if l.Kind.Calendar() {
		return g.Calendar.level(s.At)
	}
	if g.over(l, s) {
		return 0, 0, 0
	}
	units = g.sum
	now := s.Dial()
	for i := range g.Entries {
		if next = sub(g.Entries[i].end(l), now); next > 0 {
			empty = sub(g.Entries[len(g.Entries)-1].end(l), now)
			if all, ok := g.back(l, s); ok {
				next, empty = min(next, all), min(empty, all)
			}
			return max(0, units), next, empty
		}
		units -= g.Entries[i].Units
	}
	return 0, 0, 0
}

// brim fills the log to the brim, because nobody knows what calls have taken.
func (g *Log) brim(l *Limit, now time.Duration) {
	*g = Log{Name: g.Name, Unit: g.Unit, Kind: g.Kind, Zone: g.Zone, Longest: l.Window, Skip: unsure, Beside: now}
	if l.Kind.Calendar() {
		g.Calendar.This, g.Calendar.Garbage = l.Capacity, true
	} else {
		g.Entries = []Entry{marker(now, l.Capacity)}
		g.count()
	}
}
