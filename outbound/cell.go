package outbound

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// cell is the state of a bucket with one leaky limit and without bookings, holds or returns. It is
// one word, the time when the bucket will be empty: level = (word - now)/unit. To fill it is one
// compare-and-swap. For anything else a localState takes the word away, under its lock, and puts it
// back if the state is that simple again.
//
// With very many buckets most of a decision is waiting for memory: so what every call looks
// at is one cache line, together with the bucket's key.
type cell struct {
	word     atomic.Int64  // when the bucket is empty, in ns of this process; or busy
	seen     atomic.Int64  // when the last call was admitted by the word, to the millisecond
	unit     int64         // ns that a unit takes to leak, or 0 if the state is never here
	full     int64         // ns that a full bucket takes to leak
	capacity float64       // of the first limit
	keys     atomic.Int32  // limiters around the bucket that Keyeds have
	info     atomic.Uint32 // the unit of a Cost that the first limit counts, and good
}

const (
	busy = math.MaxInt64 // in the word: the state is not here
	// good means, in info, that a call that was charged to the word has succeeded.
	good = 1 << 8
	// coarse is how exactly a cell knows when its last call left. It only has to know
	// whether that was more than store.BookingGrace ago.
	coarse = int64(time.Millisecond)
)

// fill is what a call has taken of a cell.
type fill struct {
	units  float64
	word   int64 // of the cell, after it
	at     int64 // when it was
	before int64 // when the fill before was
}

// start prepares the word, at time born, if whole nanoseconds per unit are exact enough. The
// state of a window or a calendar is more than a word.
func (c *cell) start(l *Limit, born time.Duration) bool {
	unit := math.Ceil(1e9 / l.LeakRate * (1 - bits))
	// The rate is rounded once, here, and down; the capacity as every cost is. Rounding those apart
	// would keep most limits from ever admitting all of their capacity.
	if l.inFlight || l.kind != store.Leaky || unit > math.MaxInt64/2 || unit*l.LeakRate > 1e9*(1+1e-5) {
		return false
	}
	full := lasts(l.Capacity, int64(unit))
	if float64(full) > l.Capacity*unit*(1+1e-9) {
		return false
	}
	c.unit, c.full = int64(unit), full
	c.word.Store(int64(born))
	c.seen.Store(never)
	return true
}

// bits is what the last bits of a product or a quotient may be wrong by.
const bits = 4e-16

// lasts returns how many ns n units take to leak. It counts whole units in whole numbers, because a
// float64 loses single ns from 104 days on, and rounds up the part beyond them, except its last
// bits.
func lasts(n float64, unit int64) int64 {
	whole := int64(n)
	part := (n-float64(whole))*float64(unit) - n*float64(unit)*bits
	return whole*unit + int64(math.Ceil(max(0, part)))
}

// take charges a valid cost at time t if it fits, and notes it in f. known reports whether a call
// has succeeded before this one. If the call does not fit, wait is how long until it does, or 0 if
// the word does not show it.
func (c *cell) take(cost *Cost, t int64, f *fill) (wait time.Duration, ok, known bool) {
	word := c.word.Load()
	info := c.info.Load()
	n, need := cost[info&(units-1)], c.unit
	if word == busy || !(n > 0 && n <= c.capacity) {
		return 0, false, false
	}
	full, seen := c.full, c.seen.Load()
	if n != 1 || c.capacity > 1e9 { // else it is whole, and no less than a billionth
		need = min(lasts(max(n, c.capacity*1e-9), need), full)
	}
	for {
		next := max(word, t) + need
		if over := next - t - full; over > 0 {
			if word-t > full { // the clock has stepped back, or t is old
				return 0, false, false
			}
			return time.Duration(over), false, false
		}
		if c.word.CompareAndSwap(word, next) {
			if t-seen >= coarse {
				c.seen.Store(t)
			}
			*f = fill{n, next, t, seen}
			return 0, true, info&good != 0
		}
		if word = c.word.Load(); word == busy {
			return 0, false, false
		}
	}
}

// unitOf is the index of the number in a Cost that the cell counts.
func (c *cell) unitOf() int { return int(c.info.Load() & (units - 1)) }

// idle reports whether the word, at time t, equals a new one.
func (c *cell) idle(t time.Duration) bool {
	return c.word.Load() <= int64(t) && c.seen.Load() <= int64(t-store.BookingGrace)
}

// read sets an unused state to that of word and seen at time t.
func (c *cell) read(s *store.State, law []store.Limit, word, seen int64, t time.Duration) {
	s.Advance(law, t)
	s.Level[0] = c.level(word, t)
	s.Last = max(s.Last, min(0, time.Duration(seen)-t))
}

// level is that of the word at time t.
func (c *cell) level(word int64, t time.Duration) float64 {
	return min(c.capacity, max(0, float64(word-int64(t))/float64(c.unit)))
}
