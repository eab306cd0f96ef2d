package store

import (
	"math"
	"time"
)

// Slack is by how much the clocks of the process, of the store and of the API may differ, and how
// long a call may travel, around the end of a calendar period. No call leaves within Slack of it.
const Slack = time.Second

// Period is the calendar period of a limit that a moment is in, as Unix times in seconds. The
// process computes it in the limit's zone, because a store knows no zones.
type Period struct {
	Begin, End int64 // of the period that the moment is in
	Next       int64 // the end of the next period
}

// Sound reports whether its times are in order.
func (p *Period) Sound() bool {
	const most = 4.6e9 // seconds: the year 2115
	return p.Begin > -most && p.Begin < p.End && p.End < p.Next && p.Next < most
}

// at returns the begin and the end of the period that a Unix time is in.
func (p *Period) at(unix time.Duration) (begin, end time.Duration, ok bool) {
	begin, end = time.Duration(p.Begin)*time.Second, time.Duration(p.End)*time.Second
	if unix >= end {
		begin, end = end, time.Duration(p.Next)*time.Second
	}
	return begin, end, unix >= begin && unix < end
}

// period is the law of limits by the calendar: a count and an end.
type period struct{ fixed }

func (period) scripted(Kind) bool { return true }

func (period) shaped(l *Limit) bool { return l.Rate == 0 && l.Window == 0 }

// roll brings the limit to the period that the State's Unix time is in. It reports whether the step
// has said which that is, and whether it is another one.
func (period) roll(s *State, i int, of *Period) (timely, begun bool) {
	p := &s.Parts[i]
	unix := s.Unix
	// Two clocks that differ from the API's by at most Slack differ by twice that from each
	// other. A time so little before the period is of another clock, and the period stays.
	if p.End > 0 && unix < p.Begin && unix >= p.Begin-2*Slack {
		unix = p.Begin
	}
	begin, end, ok := of.at(unix)
	if !ok {
		return false, false
	}
	if begun = begin < p.Begin || end > p.End; begun {
		switch {
		case p.Begin == 0: // it is new
		case begin >= p.End:
			s.Level[i] = 0
		case end == p.Begin: // the clock was set back, and may come forward again: both periods count as one
			end = p.End
		} // else the zone is another one, or the clock was wrong: lose nothing
		p.Sure = p.Sure && p.Begin == 0
		p.Begin, p.End = begin, end
	}
	return true, begun
}

func (period) look(*State, *Limit, int, bool) {}

// wait has no capacity within Slack of the end, and nothing can be booked beyond it.
func (period) wait(s *State, l *Limit, i int, n float64, w time.Duration) (time.Duration, bool) {
	p := &s.Parts[i]
	t := add(s.Unix, s.Real(w))
	if t >= p.End-Slack || !l.Fits(s.Level[i]+n) {
		return max(w, s.reach(sub(p.End+Slack, s.Unix))), false
	}
	if t < p.Begin+Slack {
		w = max(w, s.reach(sub(p.Begin+Slack, s.Unix)))
	}
	return w, true
}

func (period) fill(s *State, l *Limit, i int, n float64, w time.Duration, c *Charge) {
	p := &s.Parts[i]
	if c.Y[i] = p.Ret + n; n > 0 {
		p.Ret += n
		s.Level[i] += n
		if until := p.End - Slack; c.Until == 0 || until < c.Until {
			c.Until = until
		}
	}
}

func (law period) undo(s *State, l *Limit, i int, c *Charge) {
	s.Parts[i].Ret -= c.N[i]
	law.settle(s, l, i, c, -c.N[i], true)
}

// settle counts if the call was of this period.
func (period) settle(s *State, l *Limit, i int, c *Charge, more float64, known bool) {
	p := &s.Parts[i]
	if of := c.Until > p.Begin && c.Until <= p.End; of && known || more > 0 && (of || c.Until == 0) {
		s.Level[i] = max(0, s.Level[i]+more)
	}
}

func (period) freed(*Limit, float64) float64 { return math.Inf(1) }

func (law period) behind(s *State, l *Limit, i int, n float64, w time.Duration) time.Duration {
	at, _ := law.wait(s, l, i, n, w)
	return at
}

// void leaves what is counted: a caller whose reservation is void returns it.
func (period) void(*State, *Limit, int) bool { return true }

// resume takes nothing out of a period, because the API goes on counting.
func (period) resume(s *State, l *Limit, i int, _, _, _ time.Duration) {
	if s.filled(i) && s.Parts[i].Sure { // since then the period is the same, and no call has left
		s.Level[i] = 0
	}
}

func (period) shares(*Limit) time.Duration { return shareTime }

func (period) change(s *State, old, l *Limit, i int) bool { return true }

func (period) share(l *Limit, _ float64) {
	l.Capacity = max(l.Capacity, math.SmallestNonzeroFloat64) // no limit has a capacity of 0
}

func (period) empty(s *State, l *Limit, i int) (dial, real time.Duration) {
	if s.Level[i] == 0 {
		return 0, 0
	}
	return 0, sub(s.Parts[i].End+Slack, s.Unix)
}
