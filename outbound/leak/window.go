package leak

import (
	"math"
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
	// steady is by how much bucket time may have fallen behind while it counts as real time.
	steady = time.Millisecond
)

// Log is what a key keeps of a limit that is no leaky one: which units were filled when. The
// zero value with a Name and a Unit is an empty one.
type Log struct {
	Name string
	Unit int32
	// Longest is the longest window of the workers that use the limit. The log keeps entries
	// for as long.
	Longest time.Duration
	// Skip is how far bucket time was behind real time at the place with which the last entry
	// of a Fixed limit began, if the API's window began there as well; else unsure.
	Skip time.Duration
	// Total is the units that were filled in this life, and not undone. It tells whether
	// anything was filled since a call.
	Total float64
	// Entries are those of a window, in the order of their places.
	Entries []Entry
	// Calendar is the state of a limit that counts by the calendar.
	Calendar Calendar `json:",omitzero"`

	sum   float64 // of Entries, if known
	known bool    // the log is as this package has left it in memory
}

// Entry is units that were filled within a part of a window.
type Entry struct {
	First, Last time.Duration // dial times of the first place and the last
	Units       float64
}

// marker is an entry that stands for no calls: a hold, or garbage, has put it in. No place is
// in it, so that no call gets anything of it back, and a Resume takes it out.
func marker(at time.Duration, units float64) Entry { return Entry{at + 1, at, units} }

func (e *Entry) marks() bool { return e.First > e.Last }

// end returns the dial time from which the entry counts no more.
func (e *Entry) end(l *Limit) time.Duration {
	if l.Kind == Fixed {
		return add(e.First, l.Window)
	}
	return add(e.Last, l.Window)
}

// log returns the log of limit l, and makes it if there is none.
func (s *State) log(l *Limit) *Log {
	if s.Logs == nil {
		s.Logs = new(Logs)
	}
	for i := range *s.Logs {
		if g := &(*s.Logs)[i]; g.Unit == l.Unit && g.Name == l.Name {
			return g
		}
	}
	*s.Logs = append(*s.Logs, Log{Name: l.Name, Unit: l.Unit})
	return &(*s.Logs)[len(*s.Logs)-1]
}

// Logs are the logs of a key, one for each name and unit that has one.
type Logs []Log

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

// drop takes the log of a limit out.
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
func (g *Log) wait(l *Limit, n float64, w, dial time.Duration) time.Duration {
	sum := g.sum + n
	for i := range g.Entries {
		if l.fits(sum) {
			break
		}
		e := &g.Entries[i]
		w = max(w, sub(e.end(l), dial))
		sum -= e.Units
	}
	return w
}

// fill takes n units at a place, which is not before any other. skip is how far bucket time is
// behind real time there. Before it, the log forgets what ended before the dial time from.
func (g *Log) fill(l *Limit, n float64, place, skip, from time.Duration) {
	g.Total += n
	g.forget(l, from)
	if last := len(g.Entries) - 1; last >= 0 {
		e := &g.Entries[last]
		joins := !e.marks() && place <= max(e.Last, add(e.First, l.Window/parts))
		if l.Kind == Fixed {
			joins, skip = g.joins(l, e, place, skip)
		}
		if joins {
			e.Last, e.Units = max(e.Last, place), e.Units+n
			g.sum += n
			return
		}
	}
	g.Skip = skip
	g.add(l, Entry{place, place, n})
}

// unsure is the Skip of a log of which nobody knows when the API's window begins.
const unsure = time.Duration(math.MinInt64)

// joins reports whether a call at a place is in the window that began with the last entry e, and
// returns the Skip of the log if not. If a hold or a slow-down came between, real time may have
// gone past the end of the API's window, and then this call begins the next one, or it may not.
// The same is so of a call at the window's end: the API's window begins when its first call
// arrives, up to spread late, and ends up to spread before this one; and this call travels, too.
// Until a window has passed without a call, all that is sure is then what a Moving limit keeps:
// each call counts for a window from its place on.
func (g *Log) joins(l *Limit, e *Entry, place, skip time.Duration) (bool, time.Duration) {
	d := sub(skip, g.Skip)
	sure := !e.marks() && d <= steady && d >= -steady
	switch {
	case sure && place < sub(e.end(l), 2*spread):
		return true, skip
	case sure && place < e.end(l):
		return false, unsure
	case sure || place >= add(e.Last, l.Window):
		return false, skip
	}
	g.Skip = unsure
	if joins := !e.marks() && place <= add(e.First, l.Window/parts); joins {
		e.First = max(e.First, place)
		return true, unsure
	}
	return false, unsure
}

// add appends an entry, which is the last, or counts for as long as the last does.
func (g *Log) add(l *Limit, e Entry) {
	if n := len(g.Entries); n > 0 {
		e.Last = max(e.Last, g.Entries[n-1].Last)
		e.First = max(e.First, min(g.Entries[n-1].First, g.Entries[n-1].Last))
	}
	g.Entries = append(g.Entries, e)
	g.sum += e.Units
	for len(g.Entries) > maxEntries {
		g.merge(l)
	}
}

// forget drops what has ended at the dial time from, for the longest window in use.
func (g *Log) forget(l *Limit, from time.Duration) {
	g.Longest = max(g.Longest, l.Window)
	gone := 0
	for gone < len(g.Entries) && g.Entries[gone].Last+g.Longest <= from {
		gone++
	}
	switch {
	case gone == 0:
	case gone == len(g.Entries):
		g.Entries, g.Longest, g.sum = g.Entries[:0], l.Window, 0
	default:
		for i := range gone {
			g.sum -= g.Entries[i].Units
		}
		g.Entries = g.Entries[:copy(g.Entries, g.Entries[gone:])]
	}
}

// merge makes one entry of the two neighbours that are nearest to each other. Each counts
// until the later of both has ended, so that the log never tells of less than was filled.
func (g *Log) merge(l *Limit) {
	at, least := 0, time.Duration(0)
	for i := range g.Entries[1:] {
		if span := g.Entries[i+1].Last - g.Entries[i].First; i == 0 || span < least {
			at, least = i, span
		}
	}
	a, b := g.Entries[at], g.Entries[at+1]
	first := min(a.First, a.Last)
	if l.Kind == Fixed {
		first = max(first, min(b.First, b.Last))
	}
	// A return may have left an entry of a Fixed limit later than the next.
	g.Entries[at] = Entry{first, max(a.Last, b.Last), a.Units + b.Units}
	g.Entries = slices.Delete(g.Entries, at+1, at+2)
}

// find returns the index of the entry that has the units of a call at a place, or -1.
func (g *Log) find(place time.Duration) int {
	for i := len(g.Entries) - 1; i >= 0; i-- {
		switch e := &g.Entries[i]; {
		case e.marks(): // a Fixed limit's may end after an entry that goes on behind it
		case e.Last < place:
			return -1
		case e.First <= place:
			return i
		}
	}
	return -1
}

// settle makes n units of a call at a place into used. What the call did not use comes back
// whole: what never went out was never there.
func (g *Log) settle(l *Limit, place time.Duration, n, used float64, now time.Duration) {
	i := g.find(place)
	if i < 0 {
		if used > n && add(place, l.Window) > now {
			g.add(l, Entry{place, place, used - n})
		}
		return
	}
	e := &g.Entries[i]
	more := max(-e.Units, used-n)
	g.sum += more
	e.Units += more
	if used == 0 && l.Kind == Fixed && place == e.First {
		e.First, g.Skip = e.Last, unsure // the API's window may have begun with any of the others
	}
	if e.Units <= l.Capacity*0.5e-9 {
		g.Entries = slices.Delete(g.Entries, i, i+1)
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
		e.Last = min(e.Last, max(e.First, before))
	} else {
		g.Entries = slices.Delete(g.Entries, i, i+1)
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
		for ; j >= 0 && g.Entries[j].end(l)-l.Window > after; j-- {
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
		g.merge(l)
	}
	g.count()
}

// void takes out what is booked for later than the dial time until.
func (g *Log) void(until time.Duration) {
	g.Entries = slices.DeleteFunc(g.Entries, func(e Entry) bool { return !e.marks() && e.First > until })
	if n := len(g.Entries); n > 0 && !g.Entries[n-1].marks() {
		e := &g.Entries[n-1]
		e.Last = min(e.Last, max(e.First, until))
	}
	g.count()
}

// resume takes out the bookings, which are those after the dial time now, and the markers. The
// dial then shows at: nothing that has gone counts as later.
func (g *Log) resume(now, at time.Duration) {
	g.void(now)
	g.Entries = slices.DeleteFunc(g.Entries, func(e Entry) bool { return e.marks() })
	for i := range g.Entries {
		e := &g.Entries[i]
		e.First, e.Last = min(e.First, at), min(e.Last, at)
	}
	g.Skip = unsure
	g.count()
	g.Calendar.resume()
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

// raise brings what the log holds up to a level, with an entry at a place.
func (g *Log) raise(l *Limit, level float64, place time.Duration) {
	if more := level - g.sum; more > l.Capacity*0.5e-9 {
		g.add(l, Entry{place, place, more})
	}
}

// level returns what counts of the log at the dial time now: the units, and in how much
// bucket time, or real time, the first and the last of them go. at is State.At.
func (g *Log) level(l *Limit, now, at time.Duration) (units float64, next, empty time.Duration) {
	if l.Kind.Calendar() {
		return g.Calendar.level(at)
	}
	units = g.sum
	for i := range g.Entries {
		if next = sub(g.Entries[i].end(l), now); next > 0 {
			return max(0, units), next, sub(g.Entries[len(g.Entries)-1].end(l), now)
		}
		units -= g.Entries[i].Units
	}
	return 0, 0, 0
}

// brim fills the log to the brim, because nobody knows what calls have taken.
func (g *Log) brim(l *Limit, now time.Duration) {
	*g = Log{Name: g.Name, Unit: g.Unit, Longest: l.Window}
	if l.Kind.Calendar() {
		g.Calendar.This, g.Calendar.Garbage = l.Capacity, true
	} else {
		g.Entries = []Entry{marker(now, l.Capacity)}
		g.count()
	}
}
