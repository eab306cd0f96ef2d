package store

import "time"

// leaky is the law of leaky limits: at most Capacity + Rate*W units leave in any interval W.
type leaky struct{}

func (leaky) scripted(k Kind) bool { return k == Leaky }

func (leaky) shaped(l *Limit) bool {
	drain := l.Capacity / l.Rate
	return l.Zone == "" && l.Rate > 0 && l.Rate <= maxRate && drain < 1.01*maxDrain && drain > 0.99e-9
}

// look ends Owed and Over once the level counts on no reservation and no hold.
func (leaky) look(s *State, l *Limit, i int, _ bool) {
	if p := &s.Parts[i]; (p.Owed != 0 || p.Over != 0) && s.Last <= 0 && s.Rem <= 0 {
		if p.Owed = 0; s.Level[i] <= l.Capacity {
			p.Over = 0
		}
	}
}

func (leaky) leak(s *State, l *Limit, i int, sec float64) {
	left := s.Level[i] - l.flow(sec)
	if s.Level[i] = 0; left > 0 {
		s.Level[i] = left
	}
}

func (leaky) wait(s *State, l *Limit, i int, n float64, w time.Duration) (time.Duration, bool) {
	return max(w, l.Above(s.Level[i]+n, l.Capacity)), true
}

// fill follows the joint rule: a call that waits for one limit fills the others when it leaves,
// not now.
func (leaky) fill(s *State, l *Limit, i int, n float64, w time.Duration, c *Charge) {
	run := l.flow(w.Seconds())
	if n > 0 {
		c.Up[i] = max(0, run-s.Level[i])
		s.Level[i] = max(s.Level[i], run) + n
	}
	c.Y[i] = s.Level[i] - run + s.Parts[i].Ret
}

func (leaky) undo(s *State, _ *Limit, i int, c *Charge) {
	s.Level[i] = max(0, s.Level[i]-c.N[i]-c.Up[i])
}

// left returns how much of the level that c's own fill left is still there: less what has run past
// since, and less what was returned.
func (leaky) left(s *State, l *Limit, i int, c *Charge) float64 {
	return c.Y[i] - s.Parts[i].Ret + l.flow((c.Place - s.Dial()).Seconds())
}

// settle returns at most what is left of the call's own fill, less what must still run until the
// last reservation.
func (law leaky) settle(s *State, l *Limit, i int, c *Charge, more float64, known bool) {
	if more > 0 {
		s.Level[i] += more
	} else if known {
		back := law.left(s, l, i, c) - l.flow(max(0, s.Last).Seconds())
		back = min(max(0, back), -more, s.Level[i])
		s.Level[i] -= back
		s.Parts[i].Ret += back
	}
}

func (law leaky) since(s *State, l *Limit, i int, c *Charge) float64 {
	if c.Y[i]-s.Parts[i].Ret < -1e-8*l.Capacity { // a hold has written off what was there
		return 0
	}
	return max(0, s.Level[i]-law.left(s, l, i, c)-l.flow(max(0, s.Last).Seconds())) + 1e-6
}

func (leaky) freed(l *Limit, n float64) float64 { return n / l.Rate }

// hold fills the limit except for room.
func (leaky) hold(s *State, l *Limit, i int, _, _ time.Duration, room float64) {
	if room >= 0 {
		s.Level[i] = max(s.Level[i], l.Capacity+l.flow(max(0, s.Last).Seconds())-room)
		s.Parts[i].Ret += s.Level[i] // nothing is returned to calls from before
	}
}

// most returns the largest number of units that can have left and count still.
func (leaky) most(s *State, l *Limit, i int) float64 { return max(l.Capacity, s.Parts[i].Over) }

// behind counts on no more than an empty limit at the last reservation.
func (law leaky) behind(s *State, l *Limit, i int, n float64, w time.Duration) time.Duration {
	at, _ := law.wait(s, l, i, n, w)
	return max(at, add(w, l.Above(n, l.Capacity)))
}

func (leaky) slides() bool { return false }

func (law leaky) void(s *State, l *Limit, i int) bool {
	p := &s.Parts[i]
	s.Level[i] = min(s.Level[i]+p.Owed, law.most(s, l, i)+l.flow(MaxReplyAge.Seconds())+p.Owed)
	p.Owed = 0
	return false
}

func (law leaky) resume(s *State, l *Limit, i int, back, soon, last time.Duration) {
	p := &s.Parts[i]
	run := l.flow(last.Seconds())
	ran := l.flow(min(max(0, s.Last), soon, last).Seconds())
	s.Level[i] = min(law.most(s, l, i)+run, s.Level[i]+s.Leaked[i]+p.Owed+run-ran)
	if s.filled(i) { // what filled it then has leaked first
		s.Level[i] = max(0, s.Level[i]-max(0, l.Capacity-l.flow((s.Dial()-back).Seconds())))
	}
}

// change keeps the time at which the level will have leaked to what the last reservation leaves.
func (law leaky) change(s *State, old, l *Limit, i int) bool {
	p := &s.Parts[i]
	if most := law.most(s, old, i); most > l.Capacity && (s.Level[i] > l.Capacity || s.Last > 0 || s.Rem > 0) {
		p.Over = most
	}
	if l.Rate == old.Rate {
		return true
	}
	more := float64((l.Rate - old.Rate) * min(max(0, s.Last).Seconds(), s.Level[i]/old.Rate))
	s.Level[i] = max(0, s.Level[i]+more)
	p.Owed = max(0, p.Owed-more)
	return false
}

func (leaky) shares(*Limit) time.Duration { return 0 }

func (leaky) share(l *Limit, whole float64) {
	if l.Window = 0; l.Capacity < whole {
		l.Capacity, l.Rate = whole, max(l.Rate, whole/maxDrain)
	}
}

func (leaky) owes(l *Limit, n, _ float64, d time.Duration) float64 {
	if l.flow(d.Seconds()) >= l.Capacity { // it has drained
		return 0
	}
	return n
}

func (leaky) empty(s *State, l *Limit, i int) (dial, real time.Duration) {
	return lasts(s.Level[i], l.Rate), 0
}
