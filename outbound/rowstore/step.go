package rowstore

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// step is a trip as it is carried out on its row.
type step struct {
	*carrier
	trip  *engine.Trip
	name  []byte
	was   *row // as it was last seen, or nil: then the step only looks
	alone bool // see Swap.Alone
	lock  bool // the step computes once it has locked the row
	made  made // what it makes of the row as it was last seen, if it does not lock
	at    time.Duration
	skew  // of the key, when the step began

	pause time.Duration // of an attempt that finds the row locked

	mu    sync.Mutex
	sent  int     // attempts at its swap
	ended bool    // its operations go with another step, so that no attempt writes from now on
	tries []*made // by attempts that have locked the row; each may have been written
}

// made is what a step makes of a row.
type made struct {
	was   *row
	row   *row   // afterwards; if bytes is nil it is the row from before
	bytes []byte // nil if there is nothing to write
	keep  time.Duration
	reply store.Reply
}

// make computes what the step makes of a row at a time. try is a result of one step.
func (m *made) make(s *step, was *row, now time.Duration, try int) {
	bucket, op := was.bucket.Clone(), s.trip.Op
	op.Into = make([]store.Charge, 0, min(len(op.Costs), 128)) // one allocation is enough for most steps
	m.was, m.row, m.reply = was, was, op.Apply(&bucket, now)
	if !m.reply.Changed && !s.trip.Fence {
		return
	}
	m.row = was.next(bucket, record{s.worker, numberOf(s.trip, try)}, random())
	m.bytes = m.row.append(nil)
	m.keep = min(max(0, m.reply.Expire), forLong) + time.Minute + s.ahead
}

// forLong is the longest that a row has to be kept. A limit drains in less, except for what a call
// has cost beyond its capacity.
const forLong = 100 * 365 * 24 * time.Hour

// numberOf returns the number of a step on record. Later steps of a worker have higher ones.
func numberOf(t *engine.Trip, try int) uint64 {
	return uint64(t.Seq)<<tryBits | uint64(try&lastTry)
}

// lastTry is the last number of a try.
const tryBits, lastTry = 8, 0xff

// isOf reports whether a number on record is of this step.
func (s *step) isOf(number uint64) bool { return number>>tryBits == uint64(s.trip.Seq) }

// random returns a number that is not 0.
func random() uint64 { return rand.Uint64() | 1 }

// send reports whether an attempt may still write the row. The engine begins a second attempt,
// which may wait until the first has ended the step.
func (s *step) send() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.sent++
	return true
}

// end ends a step whose last attempt has written nothing, and reports whether it has: not if an
// attempt before, or next to it, may be carried out.
func (s *step) end() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = (s.sent <= 1 || s.made.bytes == nil) && len(s.tries) == 0
	return s.ended
}

// again reports whether its swap was sent more than once.
func (s *step) again() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent > 1
}

// note is what an attempt has found.
type note struct {
	row  *row  // as it is now
	made *made // what was made of it by this attempt or an earlier one, or nil
	busy bool
	lost bool // it is unknown whether an attempt before was carried out
	late bool // the time of the attempt was not the rows' time
	race bool // another worker has written the row since it was last seen
	skew
}

// swap returns the swap of all attempts.
func (s *step) swap() Swap {
	sw := Swap{Key: s.name}
	if s.was != nil {
		sw.Old, sw.Time = s.was.token, (s.at - s.ahead).Truncate(time.Microsecond)
		sw.New, sw.Token, sw.Keep = s.made.bytes, s.made.row.token, s.made.keep
	}
	return sw
}

// swapped returns what a swap has come to.
func (s *step) swapped(sw *Swap) *note {
	n := &note{busy: sw.Busy, skew: s.skew}
	defer func() { n.see(sw, n.row) }()
	switch {
	case s.was == nil:
		n.row = read(sw.Row)
		return n
	case sw.Done:
		n.row, n.made = s.made.row, &s.made
		return n
	case sw.Row.Token == s.was.token:
		n.row = s.was
		if n.late = !sw.InTime(); s.made.bytes == nil && !n.late {
			n.made = &s.made
		}
		return n
	}
	n.row, n.race = read(sw.Row), true
	number, ok := n.row.number(s.worker)
	if ok && s.isOf(number) && s.made.bytes != nil {
		n.made = &s.made
	}
	n.lost = s.again() && !ok && s.made.bytes != nil && n.row.full()
	return n
}

// locked computes the step on a row that the attempt has locked. It does nothing after ctx has
// ended.
func (s *step) locked(ctx context.Context, sw *Swap) *note {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &note{row: read(sw.Row), skew: s.skew}
	n.see(sw, n.row)
	n.race = s.was != nil && n.row.token != s.was.token
	if ctx.Err() != nil {
		n.busy = true
		return n
	}
	number, ok := n.row.number(s.worker)
	if ok && s.isOf(number) { // an attempt before was carried out
		if i := int(number & lastTry); i < len(s.tries) {
			n.made = s.tries[i]
			return n
		}
	}
	if last := n.row.trip(s.worker); last > 0 && last < s.trip.Last { // the rows have lost data
		return n
	}
	if n.lost = len(s.tries) > 0 && !ok && n.row.full(); n.lost {
		return n
	}
	if len(s.tries) > lastTry {
		s.tries = s.tries[:0] // the row is locked without a record of them, so that they cannot be written later
	}
	m := new(made)
	m.make(s, n.row, sw.Clock+n.ahead, len(s.tries))
	s.tries = append(s.tries, m)
	n.row, n.made = m.row, m
	sw.New, sw.Token, sw.Keep = m.bytes, m.row.token, m.keep
	return n
}
