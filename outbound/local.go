package outbound

import (
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// common is what a bucket needs beyond its cell, wherever its state is.
type common struct {
	force   limitsInForce
	slots   slots
	waiting waiting
	watches watches
	hold    hold
}

// localState is a key of the law in this process. A bucket with one leaky limit uses it only
// as long as its cell cannot tell the state: while calls are booked or held, or have given
// units back. Such a state goes back to the cell with a new life, once nobody could tell it
// from a new bucket's.
type localState struct {
	mu     sync.Mutex // protects what follows
	stored leak.Stored
	// Of a bucket with a cell:
	born time.Duration // the life in which the word counts
	base int64         // the epoch that the word knows of
	idle time.Duration // when the state is as good as a new one, if it is left alone
	seen int64         // the cell's, when its word was moved here

	replaced bool // SetLimits has changed how many calls may be in progress
}

func (l *localState) init(born time.Duration, law []leak.Limit) {
	l.stored = leak.Stored{State: leak.New(born), Limits: law}
	l.born, l.base = born, int64(born)
}

// update carries a step out.
func (l *localState) update(c *cell, m *common, s *step, t *trip, r *reply) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := m.force.Load()
	if len(f.law) == 1 {
		l.openLocked(c, m)
	}
	if c.info.Load()&good != 0 {
		l.stored.State.Succeeded(l.base)
	}
	if s.action == leak.Replace {
		most := m.slots.most()
		set := newLimitSet(s.limits)
		t.set = &set
		m.slots.limit.Store(newInFlight(s.limits))
		l.replaced = l.replaced || m.slots.most() != most
	}
	asked := m.slots.reserve(s)
	r.bad = t.resolve(s, f) // by the old limits, so that what they leaked is known
	if t.set != nil {
		t.op.Replacement, t.op.Unset = t.set.law, true
	}
	at, unix := now(), time.Duration(0)
	if f.calendar != nil {
		unix = unixOf(time.Now())
		t.op.Periods = f.calendar.at(unix)
	}
	r.Reply = t.op.ApplyAt(&l.stored, at, unix)
	if s.logs {
		r.State.Logs = l.stored.Clone().State.Logs
	}
	r.force = m.force.learn(f, &r.Reply, t.set)
	if t.set != nil && r.force == f { // equal limits, but perhaps made in another way
		r.force = &inForce{limitSet: *t.set, version: f.version, before: f.before}
		m.force.Store(r.force)
	}
	m.slots.seat(s, asked, r)
	r.extended = m.hold.extends(&r.State)
	m.watches.announce(r) // with the lock held, or a later operation could be told first
	if len(r.force.law) == 1 {
		l.idle = later(r.State.At, r.Expire)
		l.shutLocked(c, m.slots.most())
	}
}

// openLocked moves the word's state here.
func (l *localState) openLocked(c *cell, m *common) {
	word, t := c.word.Swap(busy), now()
	if word == busy {
		l.renewLocked(c, m, t)
		return
	}
	l.seen = c.seen.Load()
	c.read(&l.stored.State, m.force.Load().law, word, l.seen, t)
}

// renewLocked begins a new life, to which the word then belongs, if the state is as good as a
// new one at time t. The life begins when that came to be so: no call of before is of it.
// What was refused is forgotten with the life; if nothing was, a refusal of one of its calls
// is still to be news, and so the epoch stays. While somebody waits the life goes on: a
// place that is late is known as late in it.
func (l *localState) renewLocked(c *cell, m *common, t time.Duration) {
	if c.unit == 0 || l.stored.Version != 0 || t < l.idle || m.waiting.watched() {
		return
	}
	s := leak.New(l.idle)
	if was := &l.stored.State; was.Epoch == l.base {
		s.Epoch, s.Fails = was.Epoch, was.Fails
	} else {
		c.info.And(^uint32(good))
	}
	l.stored = leak.Stored{State: s, Limits: l.stored.Limits}
	l.born, l.base = s.Born, s.Epoch
	c.seen.Store(never) // a Resume lets nobody be on the way any more
}

// shutLocked moves the state back to the word, if it is simple enough. most calls may be in
// progress, of which the cell knows nothing; 0: any number.
func (l *localState) shutLocked(c *cell, most int) {
	s := &l.stored.State
	simple := c.unit != 0 && most == 0 && l.stored.Version == 0 && s.Born == l.born && s.Epoch == l.base && s.Skip == 0 &&
		s.Rem <= 0 && s.Last <= 0 && s.Level[0].Ret == 0 && s.Level[0].Level <= c.capacity
	if !simple {
		return
	}
	if seen := int64(s.At + s.Last); s.Last > -leak.BookingGrace && seen > c.seen.Load() {
		c.seen.Store(seen)
	} else if seen < l.seen { // the last booking was undone
		c.seen.CompareAndSwap(l.seen, seen)
	}
	c.word.Store(int64(s.At) + lasts(s.Level[0].Level, c.unit))
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

// succeed notes that a call has succeeded for which the word was charged at time t.
func (l *localState) succeed(c *cell, t int64) {
	l.mu.Lock() // or a new life might begin before it is noted
	defer l.mu.Unlock()
	if t >= l.base {
		c.info.Or(good)
	}
}

// changed reports whether the limits are not those that the bucket was made with.
func (l *localState) changed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stored.Version > 0 || l.replaced
}
