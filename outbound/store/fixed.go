package store

import (
	"math"
	"time"
)

const (
	// spread is by how much the network, and a caller that is late, may move two calls closer
	// together or further apart. The Window of a limit is as much longer than the API's.
	spread = 10 * time.Millisecond
	// steady is by how much the dial may have fallen behind while it counts as real time.
	steady = time.Millisecond
)

// fixed is the law of windows that begin with the first call after the last one: a count and an
// end. The API's window began with the call at Begin if that left immediately, and if the dial has
// run as real time since. Else it may have begun with any call, and it counts until a window after
// the last.
type fixed struct{ window }

func (fixed) scripted(k Kind) bool { return k == Fixed }

// sure reports whether the API's window began with the call at Begin.
func (fixed) sure(s *State, p *Part) bool {
	if !p.Sure || s.Speed < 1 {
		return false
	}
	d := sub(add(s.Skip, max(0, s.Rem)), p.Skip)
	return d <= steady && d >= -steady
}

// end returns when the window is over, as a time of the dial.
func (law fixed) end(s *State, l *Limit, p *Part) time.Duration {
	if law.sure(s, p) {
		return add(p.Begin, l.Window)
	}
	return p.End
}

func (law fixed) look(s *State, l *Limit, i int, _ bool) {
	p := &s.Parts[i]
	if s.Level[i] = p.Units; s.Dial() >= law.end(s, l, p) { // a Resume may set the dial back
		s.Level[i] = 0
	}
}

// wait has no capacity in the last moments of a window: a call may arrive when the API's window is
// over, and begin the next one. Nothing can be booked beyond the end, nor in a hold that lasts
// beyond it.
func (law fixed) wait(s *State, l *Limit, i int, n float64, w time.Duration) (time.Duration, bool) {
	left := sub(law.end(s, l, &s.Parts[i]), s.Dial())
	if left+max(0, s.Rem) <= 0 || l.Fits(s.Level[i]+n) && w < left-2*spread {
		return w, true
	}
	return max(w, left), false
}

func (law fixed) fill(s *State, l *Limit, i int, n float64, w time.Duration, c *Charge) {
	p := &s.Parts[i]
	c.Y[i] = p.Ret + n
	if n == 0 {
		return
	}
	place := s.Dial() + w
	if s.Dial() >= law.end(s, l, p) {
		p.Units = 0
		p.Begin, p.Skip, p.Sure = place, s.Skip, w == 0 && s.Rem <= 0 && s.Speed == 1
	}
	p.Ret += n
	p.Units += n
	p.End = max(p.End, place+l.Window)
	p.Sure = law.sure(s, p)
	law.look(s, l, i, false)
}

func (law fixed) undo(s *State, l *Limit, i int, c *Charge) {
	if c.N[i] > 0 {
		s.Parts[i].Ret -= c.N[i]
		law.settle(s, l, i, c, -c.N[i], true)
	}
}

func (law fixed) settle(s *State, l *Limit, i int, c *Charge, more float64, known bool) {
	p := &s.Parts[i]
	mine := known && c.Place >= p.Begin
	if more > 0 {
		p.Units += more
		p.End = max(p.End, s.Dial()+l.Window)
		p.Sure = false
	} else if mine {
		p.Units = max(0, p.Units+more)
		if c.Place == p.Begin {
			p.Sure = false // the API's window may have begun with any other call
		}
	}
	law.look(s, l, i, false)
}

func (fixed) since(s *State, l *Limit, i int, c *Charge) float64 {
	return max(0, s.Parts[i].Ret-c.Y[i]) + 1e-6
}

func (fixed) hold(*State, *Limit, int, time.Duration, time.Duration, float64) {}

// behind counts on all of a window at its end.
func (law fixed) behind(s *State, l *Limit, i int, n float64, w time.Duration) time.Duration {
	turns := max(0, math.Ceil((n-max(0, l.Capacity-s.Level[i]))/l.Capacity*(1-1e-9))-1)
	at, _ := law.wait(s, l, i, min(n, l.Capacity), w)
	return l.after(at, turns)
}

func (fixed) shares(l *Limit) time.Duration { return max(1, min(shareTime, l.Window/10)) }

func (fixed) slides() bool { return false }

func (law fixed) void(s *State, l *Limit, i int) bool {
	s.Parts[i].End = min(s.Parts[i].End, s.Dial()+MaxReplyAge+l.Window)
	return false
}

func (law fixed) resume(s *State, l *Limit, i int, back, _, _ time.Duration) {
	p := &s.Parts[i]
	if s.filled(i) && p.Begin <= 0 { // no call has begun a window since
		*p = Part{}
	}
	dial := s.Dial() - back
	p.Begin, p.End, p.Sure = min(p.Begin, dial), min(p.End, dial+l.Window+MaxReplyAge), false
}

func (fixed) change(s *State, old, l *Limit, i int) bool {
	p := &s.Parts[i]
	if l.Window != old.Window { // it is unknown when the API begins the first of the new length
		p.End += l.Window - old.Window
		p.Sure = false
	}
	return l.Window == old.Window
}

func (law fixed) share(l *Limit, whole float64) {
	l.Kind = Window
	law.window.share(l, whole)
}

func (law fixed) empty(s *State, l *Limit, i int) (dial, real time.Duration) {
	return sub(law.end(s, l, &s.Parts[i]), s.Dial()), 0
}
