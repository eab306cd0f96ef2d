package key

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Word is the state of a key with one leaky limit and without bookings, holds or returns. It is one
// word, the time when the limit will be empty: level = (word - now)/unit. To fill it is one
// compare-and-swap. For anything else a [Key] takes the state away, under its lock. It puts it back
// if it is that simple again. While the word is enough, a bucket has no Key.
//
// With very many keys most of a decision is waiting for memory: so what every call looks at is the
// beginning of one cache line.
type Word struct {
	word     atomic.Int64  // when the limit is empty, in ns of this process; or busy
	seen     atomic.Int64  // when the last call was admitted by the word, to the millisecond
	unit     int64         // ns that a unit takes to leak, or 0 if the state is never here
	full     int64         // ns that a full limit takes to leak
	capacity float64       // of the first limit
	info     atomic.Uint32 // the unit that the first limit counts, and good
}

const (
	busy = math.MaxInt64 // in the word: the state is not here
	// good means, in info, that a call that was charged to the word has succeeded.
	good = 1 << 8
	// coarse is how exactly a word knows when its last call left. It only has to know
	// whether that was more than store.BookingGrace ago.
	coarse = int64(time.Millisecond)

	units = store.MaxUnit + 1
)

// Fill is what a call has taken of a word.
type Fill struct {
	Units  float64
	Word   int64 // after it
	At     int64 // when it was
	before int64 // when the fill before was
}

// Init sets the word up for a key whose first limit counts a unit and has a capacity. The state is
// not in the word.
func (w *Word) Init(unit int, capacity float64) {
	w.capacity = capacity
	w.info.Store(uint32(unit))
	w.word.Store(busy)
}

// Begin has the state begin in the word, at time born. The limit is a leaky one of this rate. ok is
// true if whole nanoseconds per unit are exact enough.
func (w *Word) Begin(rate float64, born time.Duration) (ok bool) {
	unit := math.Ceil(1e9 / rate * (1 - bits))
	// The rate is rounded once, here, and down; the capacity as every cost is. Rounding those apart
	// would keep most limits from ever admitting all of their capacity.
	if unit > math.MaxInt64/2 || unit*rate > 1e9*(1+1e-5) {
		return false
	}
	full := lasts(w.capacity, int64(unit))
	if float64(full) > w.capacity*unit*(1+1e-9) {
		return false
	}
	w.unit, w.full = int64(unit), full
	w.word.Store(int64(born))
	w.seen.Store(Never)
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

// Take charges a cost at time t if it fits, and notes it in f. known reports whether a call has
// succeeded before this one. Otherwise wait is how long until it fits, or 0 if
// that is unknown. The numbers of the cost are finite and not negative.
func (w *Word) Take(cost *[units]float64, t int64, f *Fill) (wait time.Duration, ok, known bool) {
	word := w.word.Load()
	info := w.info.Load()
	n, need := cost[info&(units-1)], w.unit
	if word == busy || !(n > 0 && n <= w.capacity) {
		return 0, false, false
	}
	full, seen := w.full, w.seen.Load()
	if n != 1 || w.capacity > 1e9 { // else it is whole, and no less than a billionth
		need = min(lasts(max(n, w.capacity*1e-9), need), full)
	}
	for {
		next := max(word, t) + need
		if over := next - t - full; over > 0 {
			if word-t > full { // the clock has stepped back, or t is old
				return 0, false, false
			}
			return time.Duration(over), false, false
		}
		if w.word.CompareAndSwap(word, next) {
			if t-seen >= coarse {
				w.seen.Store(t)
			}
			*f = Fill{n, next, t, seen}
			return 0, true, info&good != 0
		}
		if word = w.word.Load(); word == busy {
			return 0, false, false
		}
	}
}

// Zero reports whether Init was never called: each limit has a capacity above 0.
func (w *Word) Zero() bool { return w.capacity == 0 }

// Used reports whether the state is ever in the word.
func (w *Word) Used() bool { return w.unit != 0 }

// Unit returns the index of the number of a cost that the limit counts.
func (w *Word) Unit() int { return int(w.info.Load() & (units - 1)) }

// Load returns the word, and whether the state is there.
func (w *Word) Load() (word int64, ok bool) {
	word = w.word.Load()
	return word, word != busy
}

// Seen returns when the last call was admitted by the word, to the millisecond.
func (w *Word) Seen() int64 { return w.seen.Load() }

// Succeeded notes that a call which was charged to the word has succeeded.
func (w *Word) Succeeded() { w.info.Or(good) }

// Idle reports whether the word, at time t, equals a new one.
func (w *Word) Idle(t time.Duration) bool {
	return w.word.Load() <= int64(t) && w.seen.Load() <= int64(t-store.BookingGrace)
}

// Read sets an unused state to that of the word at time t.
func (w *Word) Read(s *store.State, law []store.Limit, word int64, t time.Duration) {
	s.Advance(law, t)
	s.Level[0] = w.Level(word, t)
	s.Last = max(s.Last, min(0, time.Duration(w.seen.Load())-t))
}

// Level returns the level of the limit by the word at time t.
func (w *Word) Level(word int64, t time.Duration) float64 {
	return min(w.capacity, max(0, float64(word-int64(t))/float64(w.unit)))
}
