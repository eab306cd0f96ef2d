package store

import (
	"slices"
	"time"
)

// Change replaces the limits old by limits, of which number is the new Number. Nothing refills. A
// limit that stays keeps its level. A new one starts empty, or with what calls may have taken of
// its unit that are booked and have not left. Reservations of the next second (MaxReplyAge) stand,
// because a process may use them before it learns of the change. Later ones are void, so that no
// call waits by the old limits.
func (s *State) Change(old, limits []Limit, number int64) {
	levels, leaked, parts := s.Level, s.Leaked, s.Parts
	var booked [MaxUnit + 1]float64 // the most that calls which have not left have taken of each unit
	for unit := range booked {
		booked[unit] = maxCapacity
	}
	if s.Last > MaxReplyAge {
		for i := range old {
			if !old[i].law().void(s, &old[i], i) {
				parts[i].Since = number
			}
		}
		levels, s.Last = s.Level, MaxReplyAge
	}
	for i := range old {
		booked[old[i].Unit] = min(booked[old[i].Unit], levels[i]+parts[i].Owed)
	}
	s.Top, s.Level, s.Leaked, s.Parts = 0, Units{}, Units{}, make([]Part, len(limits))
	for i := range limits {
		l := &limits[i]
		if j := heirOf(old, limits, l); j >= 0 {
			s.Level[i], s.Leaked[i], s.Parts[i] = levels[j], leaked[j], parts[j]
			if !l.law().change(s, &old[j], l, i) || s.Corrupt && l.Capacity > old[j].Capacity {
				s.Parts[i].Since = number
			}
			continue
		}
		if s.Parts[i].Since = number; l.Kind == Fixed { // it may have begun at the API with any call from before
			s.Parts[i].End = s.Dial() + max(0, s.Last) + l.Window
		}
		if s.Last > 0 && booked[l.Unit] > 0 {
			l.law().fill(s, l, i, min(booked[l.Unit], l.Capacity), s.Last, new(Charge))
		}
	}
	s.look(limits, false)
}

// heirOf returns the index of the limit of old that l, one of limits, continues: the same limit, or
// if the user gave both no name, and there is only one such of the unit and kind on either side,
// that one. It returns -1 if there is none.
func heirOf(old, limits []Limit, l *Limit) int {
	like := func(m Limit) bool { return l.Unnamed && m.Unnamed && m.Unit == l.Unit && m.Kind == l.Kind }
	only := func(all []Limit) int {
		i := slices.IndexFunc(all, like)
		if i >= 0 && slices.ContainsFunc(all[i+1:], like) {
			return -1
		}
		return i
	}
	if j := find(old, l); j >= 0 || only(limits) < 0 {
		return j
	}
	return only(old)
}

// Resume ends a hold and a slow-down, and begins a new life: reservations become void, and nothing
// is returned to calls from before. The key's clock goes back by what the hold may have let leak
// ahead of real time. A corrupt key keeps only what calls have taken since. What is reserved within
// [MaxReplyAge] counts as left: other processes let it leave until a reply reports the Resume.
func (s *State) Resume(limits []Limit) {
	dial := max(-farthest, sub(s.Dial(), max(0, s.Rem)))
	back := s.Dial() - dial
	soon, _ := dialOf(s.Speed, max(0, MaxReplyAge-max(0, s.Rem)))
	last := time.Duration(0)
	// What is due by now may wait for the end of the hold.
	if s.Rem < MaxReplyAge && s.Last > -BookingGrace {
		last = min(MaxReplyAge, s.Real(max(0, s.Last)+BookingGrace)-BookingGrace)
	}
	if rest := MaxReplyAge - max(0, sub(s.At, s.Born)); s.Resumed && rest > 0 {
		// What the earlier Resume has counted leaves in a hold, too: its process knows of neither.
		last = max(last, min(rest, realOf(s.Speed, max(0, s.Last+back)+BookingGrace)-BookingGrace))
	}
	for i := range limits {
		limits[i].law().resume(s, &limits[i], i, back, soon, last)
	}
	born := s.At
	if born <= s.Born {
		born = s.Born + time.Microsecond // stores keep Born in whole microseconds
	}
	was := *s
	*s = New(born, 0)
	s.At, s.Skip, s.Level, s.Parts, s.Epoch, s.Unix, s.IDs = was.At, was.At-born-dial, was.Level, was.Parts, was.Epoch+1, was.Unix, was.IDs
	if s.Resumed = last > 0; s.Resumed {
		s.Last = last
	}
	s.look(limits, false)
}

// renew begins a new life of a key if it is unknown what calls have taken. Every limit is full, so
// that the key admits no more than its limits, and recovers.
func (s *State) renew(limits []Limit, now time.Duration) {
	ids := s.IDs
	*s = New(now, len(limits))
	if s.Corrupt = true; ids > 0 && ids < mostKept { // Born separates these charges from earlier ones
		s.IDs = ids
	}
	for i := range limits {
		limits[i].law().fill(s, &limits[i], i, limits[i].Capacity, 0, new(Charge))
		s.Parts[i].Sure = limits[i].Kind.Calendar()
	}
}

// filled reports whether it is known how much of limit i is what [State.renew] has filled: not once
// its capacity or its rate was changed.
func (s *State) filled(i int) bool { return s.Corrupt && s.Parts[i].Since == 0 }
