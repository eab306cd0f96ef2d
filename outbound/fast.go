package outbound

import (
	"context"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// A bucket with one limit, of which nobody waits, is held or has given
// anything back, needs no more state than the time at which it will be empty:
// level = (word - now)/unit. Filling it is then one compare-and-swap. Anything
// else takes the word away under the ledger's lock (busy), and whoever leaves
// the ledger puts it back if the state is that simple again. A state that is not,
// as after a hold or when a call has given units back, begins a new life once
// nobody could tell it from a new bucket's.

const (
	busy = math.MaxInt64 // in the word: the state is in the ledger
	// coarse is how exactly a bucket on the fast path knows when its last call
	// went: it only matters whether that was more than leak.BookingGrace ago.
	coarse = int64(time.Millisecond)
	never  = math.MinInt64 / 2
)

// start prepares the fast path, if whole nanoseconds per unit are exact enough.
func (b *Bucket) start(l *Limit) {
	b.word.Store(busy)
	unit := math.Ceil(1e9 / l.LeakRate * (1 - bits))
	// The rate is rounded once, here, and down; the brim as every cost is.
	// Rounding those apart would keep most limits from ever admitting all of
	// their capacity.
	if l.atOnce || unit > math.MaxInt64/2 || unit*l.LeakRate > 1e9*(1+1e-5) {
		return
	}
	brim := lasts(l.Capacity, int64(unit))
	if float64(brim) > l.Capacity*unit*(1+1e-9) {
		return
	}
	b.unit, b.brim = int64(unit), brim
	b.word.Store(int64(b.born))
	b.seen.Store(never)
}

// bits is what the last bits of a product or a quotient may be wrong by.
const bits = 4e-16

// lasts returns how many ns n units take to leak. It counts whole units in whole
// numbers, because a float64 tells no single ns from 104 days on, and rounds up
// the part beyond them, but for its last bits.
func lasts(n float64, unit int64) int64 {
	whole := int64(n)
	part := (n-float64(whole))*float64(unit) - n*float64(unit)*bits
	return whole*unit + int64(math.Ceil(max(0, part)))
}

// take charges a valid cost at time t, and notes it in p, if there is room then.
// If not, wait is how long there will be none, or 0: take the slow path.
func (b *Bucket) take(c *Cost, t int64, p *Permit) (wait time.Duration, ok bool) {
	word := b.word.Load()
	info := b.info.Load()
	n, need := c[info&(Units-1)], b.unit
	if word == busy || !(n > 0 && n <= b.capacity) {
		return 0, false
	}
	brim, seen := b.brim, b.seen.Load()
	if n != 1 || b.capacity > 1e9 { // else it is whole, and no less than a billionth
		need = min(lasts(max(n, b.capacity*1e-9), need), brim)
	}
	for {
		next := max(word, t) + need
		if over := next - t - brim; over > 0 {
			if word-t > brim { // the clock has stepped back, or t is old
				return 0, false
			}
			return time.Duration(over), false
		}
		if b.word.CompareAndSwap(word, next) {
			if t-seen >= coarse {
				b.seen.Store(t)
			}
			p.bucket, p.units, p.word, p.place, p.before = b, n, next, t, seen
			if info&good != 0 {
				p.flags = flagKnown
			}
			return 0, true
		}
		if word = b.word.Load(); word == busy {
			return 0, false
		}
	}
}

// peek tells of the state without changing it. Of a bucket that has no ledger it makes
// none.
func (b *Bucket) peek(ctx context.Context, name string, r *reply) error {
	word := b.word.Load()
	if b.slow.Load() != nil || word == busy {
		return b.do(ctx, name, &step{}, r)
	}
	t := now()
	*r = reply{Reply: leak.Reply{Limit: -1, State: leak.New(b.born)}, force: &inForce{limitSet: newLimitSet(b.first())}}
	s := &r.State
	s.Advance(nil, t)
	s.Level[0].Level = b.level(word, t)
	s.Last = max(s.Last, min(0, time.Duration(b.seen.Load())-t))
	return nil
}

// level returns the level that the word tells of at time t.
func (b *Bucket) level(word int64, t time.Duration) float64 {
	return min(b.capacity, max(0, float64(word-int64(t))/float64(b.unit)))
}

// slots returns how many calls at once there may be; 0: any number.
func (b *Bucket) slots() int {
	if l := b.slow.Load(); l != nil {
		return int(l.slots.Load())
	}
	if b.rate == 0 {
		return int(b.capacity)
	}
	return 0
}

// open moves the fast path's state into the ledger, whose lock is held.
func (b *Bucket) open(l *ledger) {
	word, t := b.word.Swap(busy), now()
	if word == busy {
		b.renew(l, t)
		return
	}
	s := &l.stored.State
	s.Advance(l.force.Load().law, t)
	s.Level[0].Level = b.level(word, t)
	l.seen = b.seen.Load()
	s.Last = max(s.Last, min(0, time.Duration(l.seen)-t))
}

// renew begins a new life for the word to be of, if at time t the ledger's state is
// as good as a new one. It begins when that came to be so, so that no call of before
// is taken for one of it. What was refused is forgotten with the life; if nothing was,
// a refusal of one of its calls is still to be news, and so the epoch stays. While
// somebody waits the life goes on: a place that is late is known as late in it.
func (b *Bucket) renew(l *ledger, t time.Duration) {
	if b.unit == 0 || l.stored.Version != 0 || t < l.idle || l.watched() {
		return
	}
	s := leak.New(l.idle)
	if was := &l.stored.State; was.Epoch == l.base {
		s.Epoch, s.Fails = was.Epoch, was.Fails
	} else {
		b.info.And(^uint32(good))
	}
	l.stored = leak.Stored{State: s, Limits: l.stored.Limits}
	l.born, l.base = s.Born, s.Epoch
	b.seen.Store(never) // a Resume lets nobody be on the way any more
}

// life returns the life in which the word was charged at time t, and the newest epoch
// that the call can have known of.
func (l *ledger) life(t int64) (born time.Duration, epoch int64) {
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
func (b *Bucket) succeed(t int64) {
	if l := b.slow.Load(); l != nil {
		l.mu.Lock() // or a new life might begin before it is noted
		defer l.mu.Unlock()
		if t < l.base {
			return
		}
	}
	b.info.Or(good)
}

// shut moves the state back to the fast path, if it is simple enough.
func (b *Bucket) shut(l *ledger) {
	s := &l.stored.State
	simple := b.unit != 0 && l.stored.Version == 0 && s.Born == l.born && s.Epoch == l.base && s.Skip == 0 &&
		s.Rem <= 0 && s.Last <= 0 && s.Level[0].Ret == 0 && s.Level[0].Level <= b.capacity
	if !simple {
		return
	}
	if seen := int64(s.At + s.Last); s.Last > -lag && seen > b.seen.Load() {
		b.seen.Store(seen)
	} else if seen < l.seen { // the last booking was undone
		b.seen.CompareAndSwap(l.seen, seen)
	}
	b.word.Store(int64(s.At) + lasts(s.Level[0].Level, b.unit))
}
