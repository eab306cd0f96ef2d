package leak

import (
	"math"
	"slices"
	"time"
)

// Entry is units that were filled within a part of a window.
type Entry struct {
	First, Last time.Duration // dial times of the first place and the last
	Units       float64
	// Aged is how much sooner the entry ends by the dial: for so long the dial has stood in holds
	// that began when all of its calls had gone.
	Aged time.Duration `json:",omitzero"`
}

// marker is an entry that stands for no calls: a hold, or garbage, has put it in. No place is
// in it, so that no call gets anything of it back, and a Resume takes it out.
func marker(at time.Duration, units float64) Entry {
	return Entry{First: at + 1, Last: at, Units: units}
}

func (e *Entry) marks() bool { return e.First > e.Last }

// from returns the dial time from which the entry counts for a window. Entries are in the order of
// it.
func (e *Entry) from() time.Duration { return e.Last - e.Aged }

// end returns the dial time from which the entry counts no more.
func (e *Entry) end(l *Limit) time.Duration { return add(e.from(), l.Window) }

// cut takes the places after a dial time out of an entry, but for those of the one before.
func (g *Log) cut(i int, last time.Duration) {
	e := &g.Entries[i]
	if i > 0 {
		last = max(last, g.Entries[i-1].Last)
	}
	e.Last = min(e.Last, max(e.First, last))
}

// near is by how much the places of two calls may differ by rounding.
const near = time.Microsecond

// put puts units in that went, or go, at a place: into the entry that has it, into the one before
// if that began a part before it or less, or into one of their own in its order: marks may be
// later, and so may bookings where a report is late. So no place is in two entries, of which a
// settle might take the units out of the wrong one.
func (g *Log) put(place time.Duration, units float64, part time.Duration) {
	g.sum += units
	i := len(g.Entries)
	for ; i > 0 && g.Entries[i-1].Last > place+near; i-- {
		if e := &g.Entries[i-1]; !e.marks() && e.First <= place+near {
			e.Units += units
			return
		}
	}
	if i > 0 {
		e := &g.Entries[i-1]
		if !e.marks() && e.Aged == 0 && place <= max(e.Last+near, add(e.First, part)) { // one that has aged ends too soon
			e.Last, e.Units = max(e.Last, place), e.Units+units
			return
		}
	}
	e := Entry{First: place, Last: place, Units: units}
	if i > 0 {
		e.Last = max(place, g.Entries[i-1].Last)
	}
	if i < len(g.Entries) { // what went before those has aged as they have
		e.Aged = max(0, sub(e.Last, g.Entries[i].from()))
	}
	g.Entries = slices.Insert(g.Entries, i, e)
	for len(g.Entries) > maxEntries {
		g.merge()
	}
}

// next returns the first booked place that the dial has not passed, or that it is at; the longest
// time if there is none. ok is false if no log of a window knows of all bookings.
func (s *State) next(limits []Limit) (place time.Duration, ok bool) {
	dial := s.Dial()
	for i := range limits {
		if limits[i].Kind == Leaky || limits[i].Kind.Calendar() {
			continue
		}
		g := s.log(&limits[i])
		if g.Beside >= dial {
			continue
		}
		place = math.MaxInt64
		for k := len(g.Entries) - 1; k >= 0; k-- {
			switch e := &g.Entries[k]; {
			case e.marks():
			case e.Last < dial:
				return place, true
			default:
				place = max(e.First, dial)
			}
		}
		return place, true
	}
	return 0, false
}

// passed notes that the dial may have passed booked places in a hold. Their calls can go when it
// ends.
func (s *State) passed(limits []Limit) {
	for i := range limits {
		if kind := limits[i].Kind; kind != Leaky && !kind.Calendar() {
			g := s.log(&limits[i])
			g.Beside = max(g.Beside, s.Dial())
		}
	}
}

// age lets a hold in which the dial stands for so long age what was filled before. The dial has
// gone on as far as it does in the hold.
func (s *State) age(limits []Limit, stands time.Duration) {
	if stands <= 0 {
		return
	}
	for i := range limits {
		if kind := limits[i].Kind; kind != Leaky && !kind.Calendar() {
			s.log(&limits[i]).age(s.Dial()-BookingGrace, stands)
		}
	}
}

// age lets the entries age whose places were all before the dial time gone: no call of them can
// leave after the hold, when it would be later than BookingGrace. The entries behind the first that
// may have another call do not age, so that all stay in order.
func (g *Log) age(gone, by time.Duration) {
	for i := range g.Entries {
		e := &g.Entries[i]
		if e.Last >= gone {
			return
		}
		e.Aged = min(add(e.Aged, by), farthest)
	}
}

// merge makes one entry of the two calls' entries, or of the two markers, that follow each other
// most closely. It counts until the later of both has ended, so that the log never tells of less
// than was filled. A marker and calls stay apart, because a Resume takes the marker out.
func (g *Log) merge() {
	at, with, least := 0, 0, time.Duration(math.MaxInt64)
	latest := [2]int{-1, -1} // of the calls' entries and of the markers
	for i := range g.Entries {
		b, kind := &g.Entries[i], 0
		if b.marks() {
			kind = 1
		}
		if k := latest[kind]; k >= 0 {
			a := &g.Entries[k]
			if span := sub(b.from(), a.First-a.Aged); span < least {
				at, with, least = k, i, span
			}
		}
		latest[kind] = i
	}
	a, b := &g.Entries[at], &g.Entries[with]
	m := Entry{First: min(a.First, b.First), Last: max(a.Last, b.Last), Units: a.Units + b.Units}
	if b.marks() {
		m.First = m.Last + 1
	}
	m.Aged = m.Last - max(a.from(), b.from())
	*b = m
	g.Entries = slices.Delete(g.Entries, at, at+1)
}
