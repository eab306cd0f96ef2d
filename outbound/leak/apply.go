package leak

import "time"

// Apply carries op out on a key: it changes s to what it is at the store's time now, and
// returns the reply. now is in nanoseconds since any fixed moment. Apply is a pure function,
// with no clock and no lock. It changes nothing of op, so that a store which has lost a race
// can call it again with the state that it finds then.
//
// The times of a key must not go back. Apply takes a time that is behind the one before by a
// second or less for the one before: the key stands until time has caught up. So clocks
// which differ a little, or a time that was taken before another and comes after it, count
// no time twice. A larger step back is a clock that was set: the key loses the step, and
// nothing else. A step forward is time that has passed.
//
// If Apply cannot have left s as it is, for instance with a level that is no number, s is
// garbage: a new life begins with every limit full to the brim, and [Reply.Garbage] is set. A
// store that cannot read what it has kept leaves s as [Stored.UnmarshalBinary] leaves it, or
// sets s.State.Speed to less than 0: that is garbage, too.
//
// A look, a refusal, a report that says nothing new and a step by limits that are not in
// force change nothing. [Reply.Changed] is then false, s is what it was but for [Calendar].Off,
// and a store need not write it: the next step lets leak what has run out since. A booking, a fill
// by Meter, a Resume and the first step in a calendar's period always count as a change.
//
// Limits that count by the calendar need the time of day: for those now is the Unix time, in
// nanoseconds. A store whose clock is another one calls [Op.ApplyAt].
//
// A copy of s by assignment shares its logs, which Apply changes. A store that goes back to a
// state from before calls [Stored.Clone] first, or reads its bytes again.
func (op *Op) Apply(s *Stored, now time.Duration) Reply { return op.ApplyAt(s, now, now) }

// ApplyAt is Apply where the store's time is not the Unix time, which is unix.
func (op *Op) ApplyAt(s *Stored, now, unix time.Duration) Reply {
	r, old := Reply{Limit: -1}, *s
	missing := s.missing()
	if missing {
		*s = Stored{State: New(now), Version: s.Version}
	} else if r.Garbage = !s.sound(op.Limits, now); r.Garbage {
		s.renew(now)
	}
	if op.Stamp != s.Stamp || s.Stamp != 0 && !Equal(op.Limits, s.Limits) {
		r = s.stale(now, r.Garbage)
		*s = old
		return r
	}
	if s.Limits == nil {
		s.Limits = op.Limits
		r.Changed = !missing
	}
	at, limits := s.State.At, op.Limits
	if s.Stamp == 0 {
		r.Differ = s.use(limits)
	}
	if r.Garbage {
		s.brim(limits)
	}
	ahead := s.State.Advance(limits, now)
	r.Unix = add(unix, ahead)
	timely, begun := op.roll(&s.State, limits, r.Unix)
	if !timely {
		r = Reply{Limit: -1, Stale: true, Untimely: true, Stamp: s.Stamp, Version: s.Version, Unix: r.Unix, State: s.State, Expire: add(ahead, s.expire(limits))}
		r.State.Logs = nil
		*s = old
		return r
	}
	var acted bool
	if len(op.Reports)+len(op.Back) == 0 {
		limits, acted = op.act(s, limits, now, &r)
	} else {
		limits, acted = op.compare(s, limits, now, &r)
	}
	r.State, r.Stamp, r.Version = s.State, s.Stamp, s.Version
	r.State.Logs = nil
	r.Expire = add(ahead, s.expire(limits))
	if r.Refused {
		r.Wait = add(ahead, r.Wait)
	}
	if ahead > 0 && (acted || r.Garbage) {
		s.State.unsteady(limits)
	}
	s.State.Keep(ahead)
	stepped := now < at && ahead == 0
	r.Changed = r.Changed || acted || begun || stepped || r.Garbage || s.Version != old.Version
	if !r.Changed {
		// Nothing has happened, so keep nothing. Each look at a slow clock rounds the dial
		// down by part of a nanosecond: callers that look often enough would stop it.
		*s = old
	}
	return r
}

// roll brings the calendars of a key to the periods that a Unix time is in. It reports whether
// the Op has told them, without which it does nothing, and whether a new period has begun.
func (op *Op) roll(s *State, limits []Limit, unix time.Duration) (timely, begun bool) {
	var periods [Max]Period
	for i := range limits {
		if limits[i].Kind.Calendar() {
			if periods[i], timely = op.period(i, s.Logs.find(&limits[i]), unix); !timely {
				return false, false
			}
		}
	}
	for i := range limits {
		if !limits[i].Kind.Calendar() {
			continue
		}
		g := s.log(&limits[i])
		begun = g.Calendar.roll(&periods[i], sub(unix, s.At)) || begun
		level, next, empty := g.Calendar.level(s.At)
		s.Level[i] = Level{Level: level, Top: float64(next), Ret: float64(empty)}
	}
	return true, begun
}

// period returns the period that a Unix time is in, of the limit i with the log g. It reports
// whether the Op has told it.
func (op *Op) period(i int, g *Log, unix time.Duration) (p Period, ok bool) {
	if i >= len(op.Periods) || !op.Periods[i].sound() {
		return p, false
	}
	if p = op.Periods[i]; g != nil {
		unix = g.Calendar.steady(unix)
	}
	if !p.holds(unix) {
		p = p.next()
	}
	return p, p.holds(unix)
}

// act carries out the reports and the action. It returns the limits that are in force then,
// and whether the action counts as a change.
func (op *Op) act(s *Stored, limits []Limit, now time.Duration, r *Reply) (_ []Limit, acted bool) {
	if op.Action == Book && op.Move != nil {
		return limits, op.move(s, limits, r)
	}
	op.report(s, limits)
	switch op.Action {
	case Book:
		op.book(s, limits, false, r)
		return limits, len(r.Charges) > 0
	case Meter:
		r.Full = s.State.Meter(limits, &op.Costs[0])
		return limits, true
	case Resume:
		s.State.Resume(limits)
		s.Lead = 0
		return limits, true
	case Replace:
		if s.replace(op.Replacement, op.Unset, now) {
			return op.Replacement, true
		}
	}
	return limits, false
}

// move is act for an Op with a booking to move. If there is no place for it elsewhere that is no
// later, it stays.
func (op *Op) move(s *Stored, limits []Limit, r *Reply) (acted bool) {
	was, told := *s, *r
	lifted := op.Movable() && op.Move.Version == s.Version
	if lifted { // before the reports: what they give back is then not promised to it
		s.State.Logs = s.State.Logs.clone()
		lifted = s.State.unbook(limits, *op.Move)
	}
	if op.report(s, limits); lifted {
		op.book(s, limits, true, r)
	}
	// Its place would be a later one if calls have cost more than they were to since it was booked.
	if lifted && (len(r.Charges) == 0 || r.Charges[0].Place > op.Move.Place+near) {
		*s = was
		op.report(s, limits)
		*r = told
	}
	return len(r.Charges) > 0
}

// compare is act for an Op with reports or bookings to give back, which may change nothing:
// a hold that ends before the one in force, a success that is known.
func (op *Op) compare(s *Stored, limits []Limit, now time.Duration, r *Reply) (_ []Limit, changed bool) {
	before := s.State
	writes := op.writes(limits)
	limits, acted := op.act(s, limits, now, r)
	return limits, acted || writes || !s.State.equal(&before, limits)
}

// writes reports whether the reports, or the bookings to give back, may change a log. Its level
// does not tell all: a call of a calendar's next period is in none.
func (op *Op) writes(limits []Limit) bool {
	for i := range limits {
		if limits[i].Kind == Leaky {
			continue
		}
		if len(op.Back) > 0 {
			return true
		}
		for j := range op.Reports {
			if r := &op.Reports[j]; r.Kind == Settled && r.Used[i] != r.Charge.N[i] {
				return true
			}
		}
	}
	return false
}

// equal reports whether two states of one time are the same.
func (s *State) equal(t *State, limits []Limit) bool {
	for i := range limits {
		if s.Level[i] != t.Level[i] {
			return false
		}
	}
	return s.Rem == t.Rem && s.Skip == t.Skip && s.Last == t.Last && s.Speed == t.Speed &&
		s.Epoch == t.Epoch && s.Fails == t.Fails && s.Why == t.Why && s.Row == t.Row
}

// stale is the reply to a step that counts by other limits than are in force. What is
// kept stays as it was: garbage, too, which the next step finds once more.
func (s Stored) stale(now time.Duration, garbage bool) Reply {
	r := Reply{Limit: -1, Stale: true, Stamp: s.Stamp, Version: s.Version, State: s.State}
	r.State.Logs = nil
	if s.Stamp != 0 {
		r.Limits = s.Limits
	}
	r.Expire = add(s.State.Advance(s.Limits, now), s.expire(s.Limits))
	if garbage {
		r.Expire = max(r.Expire, Remember)
	}
	return r
}

// Movable reports whether Move may be undone, so that Costs are booked instead. It may not
// if a settle of the same step adds units, because the new place could then be a later one,
// nor if the cost can never go.
func (op *Op) Movable() bool {
	if op.Move == nil || len(op.Costs) == 0 {
		return false
	}
	for i := range op.Reports {
		r := &op.Reports[i]
		if r.Kind != Settled {
			continue
		}
		for j := range op.Limits {
			if r.Used[j] > r.Charge.N[j] {
				return false
			}
		}
	}
	for j := range op.Limits {
		if op.Costs[0][j] > op.Limits[j].Capacity {
			return false
		}
	}
	return true
}

// unbook is Unbook, but leaves the charge as it is: that is the caller's.
func (s *State) unbook(limits []Limit, c Charge) bool { return s.Unbook(limits, &c) }

// known returns a copy of the charge as the key knows it. If the limits were replaced since
// it was booked, nothing of it comes back.
func (s *Stored) known(c *Charge) Charge {
	k := *c
	if k.Version != s.Version {
		k.Lost = 1<<Max - 1
		k.Before = k.Place
	}
	return k
}

// report carries out what earlier calls say, and gives back what is to be given back.
func (op *Op) report(s *Stored, limits []Limit) {
	for i := range op.Reports {
		s.report(&op.Reports[i], limits)
	}
	if op.Action != Book {
		return
	}
	for i := len(op.Back) - 1; i >= 0; i-- {
		c := s.known(&op.Back[i])
		if !s.State.Unbook(limits, &c) {
			s.State.Settle(limits, &c, &Units{})
		}
	}
}

func (op *Op) book(s *Stored, limits []Limit, lifted bool, r *Reply) {
	r.Charges = op.Into
	most := op.Wait
	if lifted {
		most = farthest // move sees to it that the new place is no later than the old one
	}
	claim, begins := op.Claim, op.Claim > s.Lead
	if begins {
		claim = 0
	}
	var until time.Duration // how far away a worker that is behind the lead may book
	for i := range op.Costs {
		n := &op.Costs[i]
		for j := range limits {
			if n[j] > limits[j].Capacity { // it can never go
				r.Refused, r.Wait, r.Limit = true, farthest, j
				return
			}
		}
		var c Charge
		last := s.State.Last
		if i == 0 && op.After > 0 {
			s.State.logs(limits) // a new one counts on Last
			s.State.Last = max(last, passes(s.State, op.After))
		}
		moved := s.State.Last - last
		wait, which, ok := s.State.fill(limits, n, most, op.Returns && i == 0, &c)
		c.Before -= moved // After has moved no booking
		if !ok {
			s.State.Last = last
			r.Refused, r.Wait, r.Limit = true, wait, which
			return
		}
		c.Version = s.Version
		r.Charges = append(r.Charges, c)
		if i == 0 {
			until = add(wait, max(catchUp, wait))
		}
		most = op.Horizon
		if op.Claim > 0 {
			claim += n[0]
			s.Lead = max(s.Lead, claim)
			r.Claim = claim
			if begins {
				r.Claim = s.Lead
			} else if claim < s.Lead && n[0] > 0 {
				most = max(most, until)
			}
		}
	}
}

// passes returns how far the dial advances in real time x.
func passes(s State, x time.Duration) time.Duration {
	s.At, s.Born, s.Skip = 0, 0, 0
	s.Advance(nil, x)
	return s.Dial()
}

// catchUp is how much further away than its first place a worker that is behind the lead may
// book. It bounds how long others wait for it, and what its crash loses.
const catchUp = 100 * time.Millisecond

func (s *Stored) report(r *Report, limits []Limit) {
	var c *Charge
	if r.Charge != nil {
		k := s.known(r.Charge)
		c = &k
	}
	before := max(0, s.State.Rem)
	switch r.Kind {
	case Settled:
		s.State.Settle(limits, c, &r.Used)
	case Refused:
		s.State.Refused(limits, r.Epoch, r.Wait, r.MaxWait, c)
		if held := s.State.Rem; r.Stagger > 0 && s.State.Fails > 0 && held > max(before, r.Wait) { // the law has doubled the hold
			most := MaxBack
			if r.MaxWait > 0 {
				most = min(most, r.MaxWait)
			}
			s.State.Hold(limits, min(held+time.Duration(r.Stagger*float64(held)), most), c)
		}
	case Held:
		s.State.Hold(limits, r.Wait, c)
	case Succeeded:
		s.State.Succeeded(r.Epoch)
	case Left:
		for i := range limits {
			if left := r.Used[i]; left >= 0 && left <= s.State.Since(limits, c, i) {
				s.State.Hold(limits, r.Wait, c)
			}
		}
	}
	if s.State.Rem > before {
		s.State.Why = r.Reason
	}
}
