package leak

import "time"

// Void makes the places void that are later than Deaf from now, and reports whether there
// may be any. It comes before a change of limits, so that nobody waits by the old ones.
// Nothing comes back to calls from before. A nearer place stands, because its worker may use
// it before it hears of the change. Without the void places no limit is fuller than the
// nearer ones can fill it.
func (s *State) Void(limits []Limit) bool {
	if s.Last <= Deaf {
		return false
	}
	for i := range limits {
		if limits[i].Kind != Leaky {
			g := s.log(&limits[i])
			g.void(s.Dial() + Deaf)
			g.Calendar.void(add(add(s.At, g.Calendar.Off), s.Real(Deaf)))
			continue
		}
		l := &s.Level[i]
		brim := l.brim(limits[i].Capacity) + limits[i].Rate*Deaf.Seconds()
		if l.Top < 0 {
			l.Level = brim
		}
		l.Level = min(l.Level, brim)
	}
	s.Last = Deaf
	return true
}

// Change replaces the limits. from[i] is the index of the i-th new limit among the old
// ones; -1: it is new, and starts empty. A new limit knows nothing of the calls that are
// booked and have not gone: unknown[i] is the most that they may take of it; +Inf: nobody
// knows. Nothing refills. The booked go at their places and nobody overtakes them: when the
// last of them goes, each limit is at least as full as they leave it.
func (s *State) Change(old, limits []Limit, from []int, unknown *Units) {
	dial, last := s.Dial().Seconds(), max(0, s.Last).Seconds()
	was := s.Level
	s.Level = [Max]Level{}
	for i := range limits {
		if j := from[i]; limits[i].Kind != Leaky || j >= 0 && old[j].Kind != Leaky {
			var before *Limit
			if j >= 0 {
				s.Level[i], before = was[j], &old[j]
				if limits[i].Kind == Fixed && before.Window != limits[i].Window { // nobody knows when the API begins the first of the new length
					s.log(&limits[i]).Skip = unsure
				}
			}
			s.convert(&s.Level[i], before, &limits[i], unknown[i])
			continue
		}
		l, rate := &s.Level[i], limits[i].Rate
		if j := from[i]; j >= 0 {
			*l = was[j]
			// Rate*dial + Ret, what has run past so far, stays what it was.
			l.Ret += (old[j].Rate - rate) * dial
			top := l.brim(old[j].Capacity)
			switch {
			case l.Top < 0 && s.ahead(), rate < old[j].Rate && s.Rem > 0:
				l.Top = -max(limits[i].Capacity, top)
			case top > limits[i].Capacity && (l.Level > limits[i].Capacity || s.Rem > 0): // a hold may have let it leak ahead
				l.Top = top
			default:
				l.Top = 0
			}
			if rate > old[j].Rate {
				l.Level += (rate - old[j].Rate) * min(last, l.Level/old[j].Rate)
			}
		}
		if last > 0 && unknown[i] > 0 {
			brim := limits[i].Capacity + rate*last
			l.Level = max(l.Level, min(brim, max(l.Level, rate*last)+unknown[i]))
		}
	}
}

// Load brings a level from one worker's shape of its limit to another's. The level l was
// true when the dial showed at, for a worker whose limit was was; the result is true now, for
// a worker whose limit is is. Up to the last booking that is known nothing new can go, and
// the level leaks as it was booked. Since then it leaks by the lower of both rates, because
// nobody knows when the calls that were booked then have gone. If a Resume has set the dial
// back to before at, Load takes the leak back.
func (s *State) Load(l Level, at time.Duration, was, is *Limit) Level {
	if was.Kind == Leaky && is.Kind != Leaky {
		l.Level = max(0, l.Level-was.Rate*sub(s.Dial(), at).Seconds())
	}
	if was.Kind != Leaky { // it may have counted for others since
		l.Level, _, _ = s.log(was).level(was, s)
	}
	if was.Kind != Leaky || is.Kind != Leaky {
		s.convert(&l, was, is, 0)
		return l
	}
	dial, top := s.Dial(), l.brim(was.Capacity)
	ahead := s.ahead() && (l.Top < 0 || is.Rate < was.Rate)
	if was.Rate != is.Rate {
		until := at
		if is.Rate > was.Rate {
			until = max(at, dial)
		}
		if s.Last > 0 {
			until = max(until, add(dial, s.Last))
		}
		x := min(sub(until, at).Seconds(), l.Level/was.Rate)
		l.Level += (is.Rate - was.Rate) * x
		// Rate*dial + Ret, what has run past until then, stays what it was.
		l.Ret += (was.Rate - is.Rate) * until.Seconds()
	}
	if run := is.Rate * sub(dial, at).Seconds(); run >= 0 {
		l.Level = max(0, l.Level-run)
	} else {
		l.Level = max(l.Level, min(l.Level-run, max(is.Capacity, top)))
	}
	switch {
	case ahead:
		l.Top = -max(is.Capacity, top)
	case top > is.Capacity: // also of a level that is below: a hold may have let it leak ahead
		l.Top = top
	default:
		l.Top = 0
	}
	return l
}

// ahead reports whether levels count on bookings or on the rest of a hold, which a Resume
// ends.
func (s *State) ahead() bool { return s.Last > 0 || s.Rem > 0 }

// Turn notes that the key was used with other limits until now. The last booking may then
// be one of which these limits know nothing, so Turn makes their levels differ by a billionth
// from what any charge expects: Unbook takes none of those for the last one. Nor need it be in
// their logs.
func (s *State) Turn(limits []Limit) {
	for i := range limits {
		l := &s.Level[i]
		if limits[i].Kind == Leaky {
			l.Ret += 1e-9 * max(l.Level, limits[i].Capacity)
		} else {
			g := s.log(&limits[i])
			g.took(1e-9 * limits[i].Capacity)
			g.Beside = add(s.Dial(), s.Last)
		}
	}
}

// Resume ends a hold and a slow-down, and begins a new life: the booked places are void, and
// nothing comes back of what calls were charged. The dial does not begin anew, because
// levels in Stored.Others count by it; it goes back by what the hold may have let leak ahead
// of real time. A limit whose level counts on bookings, or on the hold, at another rate is
// full.
func (s *State) Resume(limits []Limit) {
	held := max(0, s.Rem)
	if s.Logs != nil { // those of other workers, too, because the dial goes back for all
		for i := range *s.Logs {
			(*s.Logs)[i].resume(s.Dial(), held, s.At)
		}
	}
	for i := range limits {
		if limits[i].Kind != Leaky {
			continue
		}
		// A hold without bookings has let the limits leak ahead: take that back.
		l := s.Level[i]
		brim := l.brim(limits[i].Capacity)
		if l.Level += limits[i].Rate * held.Seconds(); l.Top < 0 && s.ahead() {
			l.Level = brim
		}
		s.Level[i] = Level{Level: min(brim, l.Level)}
		if brim > limits[i].Capacity {
			s.Level[i].Top = brim
		}
	}
	born := s.At
	if born <= s.Born {
		born = s.Born + 1
	}
	dial := max(-farthest, sub(s.Dial(), held))
	epoch := s.Epoch + 1
	at, level, logs := s.At, s.Level, s.Logs
	*s = New(born)
	s.At, s.Skip, s.Level, s.Epoch, s.Logs = at, at-born-dial, level, epoch, logs
	s.look(limits)
}

// convert brings what is in a limit to another shape or kind of it: what is in one is in the
// other. l is its level; was is nil if the limit is new. unknown is the most that the booked
// may take of a new limit; +Inf: nobody knows.
func (s *State) convert(l *Level, was, is *Limit, unknown float64) {
	if is.Kind == Leaky {
		*l = Level{Level: l.Level}
		if l.Level > is.Capacity && was.Capacity > is.Capacity {
			l.Top = was.Capacity
		}
		return
	}
	g := s.log(is)
	g.become(is.Kind)
	level := min(unknown, is.Capacity)
	if last := s.Last > 0; was != nil {
		level = l.Level
	} else if !last {
		level = 0
	}
	switch {
	case was != nil && together(was.Kind, is.Kind, was.Zone, is.Zone):
	case is.Kind.Calendar():
		g.Calendar.Least = max(g.Calendar.Least, level)
	default:
		g.raise(is, level, s.Dial()+max(0, s.Last), s.Dial())
		g.Beside = add(s.Dial(), s.Last)
	}
	level, next, empty := g.level(is, s)
	*l = Level{Level: level, Top: float64(next), Ret: float64(empty)}
}

// become makes entries count by another kind of window.
func (g *Log) become(kind Kind) {
	if g.Kind != kind {
		g.Kind, g.Skip = kind, unsure
	}
}
