package outbound

import (
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// localState is a key in this process. A bucket with one leaky limit uses it only while its cell
// cannot hold the state: while calls are booked or held, or have returned units. Such a state
// returns to the cell with a new life, once it is as good as a new bucket's.
type localState struct {
	mu     sync.Mutex // protects what follows
	stored store.Stored
	recast bool // SetLimits has changed how many calls may be in flight
	// For a bucket with a cell:
	born time.Duration // the life in which the word counts
	base int64         // the epoch that the word knows of
	idle time.Duration // when the state is as good as a new one, if it is left alone
	word int64         // the cell's, when its state was moved back
	seen int64         // the cell's, when its word was moved here
}

// firstNumber is the Number of the limits that a bucket in memory was made with.
const firstNumber = 1

func (l *localState) init(born time.Duration, limits *limitSet, base uint64) {
	l.stored = store.Stored{State: store.New(born, len(limits.law)), Limits: limits.law, Number: firstNumber, Base: base}
	l.born, l.base, l.word = born, int64(born), int64(born)
}

// updateHere carries a step out on the key in this process.
func (b *core) updateHere(p *slowPath, s *step, op *store.Op, r *reply) {
	l := &p.local
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.unit != 0 {
		l.openLocked(b, p, op)
	}
	if b.info.Load()&good != 0 {
		l.stored.State.Succeeded(l.base)
	}
	at, unix := now(), time.Duration(0)
	if op.Periods != nil {
		unix = calendar.Stamp(time.Now())
	}
	r.Reply = op.ApplyAt(&l.stored, at, unix)
	if s.Action == store.Replace {
		most := p.slots.most()
		p.slots.set(inFlightOf(s.limits))
		l.recast = l.recast || p.slots.most() != most
	}
	r.inFlight = p.slots.inForce()
	if b.unit != 0 {
		l.idle = later(r.State.At, r.Expire)
		l.shutLocked(&b.cell, p.slots.most())
	}
}

// openLocked moves the word's state here.
func (l *localState) openLocked(b *core, p *slowPath, op *store.Op) {
	c := &b.cell
	word, t := c.word.Swap(busy), now()
	if word == busy {
		l.renewLocked(c, p, t)
		return
	}
	l.seen = c.seen.Load()
	s := &l.stored.State
	c.read(s, l.stored.Limits, word, l.seen, t)
	if word == l.word { // no call was charged to the word
		return
	}
	s.Top = numberOf(word, l.born)
	s.IDs = max(s.IDs, s.Top)
	for i := range op.Reports {
		if k := op.Reports[i].Charge; k != nil && k.ID == s.Top && k.Born == s.Born {
			s.Last = max(s.Last, k.Place-s.Dial()) // seen is coarse
		}
	}
}

// numberOf returns the number of the booking after which the cell had this word.
func numberOf(word int64, born time.Duration) int64 { return word - int64(born) + 1 }

// renewLocked begins a new life, to which the word then belongs, if the state is as good as a
// new one at time t. The life begins when that came to be so: no call of before is of it.
// Refusals are forgotten with the life. If there were none, a refusal of one of its calls
// still counts as a new one, and so the epoch stays. While calls wait the life goes on,
// because it shows that a reservation is late.
func (l *localState) renewLocked(c *cell, p *slowPath, t time.Duration) {
	if l.stored.Number != firstNumber || t < l.idle || p.outbox.Watched() {
		return
	}
	s := store.New(l.idle, 1)
	if was := &l.stored.State; was.Epoch == l.base {
		s.Epoch, s.Fails = was.Epoch, was.Fails
	} else {
		c.info.And(^uint32(good))
	}
	l.stored.State, l.stored.Lead = s, 0
	l.born, l.base = s.Born, s.Epoch
	c.seen.Store(never) // a Resume leaves no call on the way
}

// shutLocked moves the state back to the word, if it is simple enough. most calls may be in flight,
// or any number if it is 0. The cell does not count them.
func (l *localState) shutLocked(c *cell, most int) {
	s := &l.stored.State
	simple := most == 0 && l.stored.Number == firstNumber && s.Born == l.born && s.Epoch == l.base && s.Skip == 0 &&
		s.Rem <= 0 && s.Last <= 0 && s.Parts[0].Ret == 0 && s.Level[0] <= c.capacity
	if !simple {
		return
	}
	if seen := int64(s.At + s.Last); s.Last > -store.BookingGrace && seen > c.seen.Load() {
		c.seen.Store(seen)
	} else if seen < l.seen { // the last booking was undone
		c.seen.CompareAndSwap(l.seen, seen)
	}
	l.word = int64(s.At) + lasts(s.Level[0], c.unit)
	c.word.Store(l.word)
}

// changed reports whether the limits are not those that the bucket was made with.
func (l *localState) changed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stored.Set || l.recast
}

// life returns the life in which the word was charged at time t, and the newest epoch
// that the call can have known of.
func (l *localState) life(t int64) (born time.Duration, epoch int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	born, epoch = l.born, l.base
	if t < int64(born) {
		born = never
	}
	if t < epoch {
		epoch = never
	}
	return born, epoch
}

// succeed notes the success of a call that was charged at time t.
func (l *localState) succeed(c *cell, t int64) {
	l.mu.Lock() // or a new life might begin before it is noted
	defer l.mu.Unlock()
	if t >= l.base {
		c.info.Or(good)
	}
}
