package rowstore

import (
	"fmt"
	"sync/atomic"
	"time"
)

// skew is how the time of a key differs from the clock that this process reads. It is zero if the
// rows have a clock. Otherwise the time of a key is the latest that any process has written, and
// runs on from there. It never steps back, and stays at or below the clock that is furthest ahead.
type skew struct {
	own   bool          // see Swap.Own
	ahead time.Duration // of the key's time
}

// see learns from a row as it is now.
func (k *skew) see(s *Swap, r *row) {
	if k.own = k.own || s.Own; !k.own || r.token == 0 || s.Clock <= 0 {
		return
	}
	if d := r.bucket.State.At - s.Clock; d <= forLong { // else it is corrupt
		k.ahead = max(k.ahead, d)
	}
}

// reported is the least skew that a Store reports.
const reported = 10 * time.Millisecond

// worst is the skew that a Store has reported last.
type worst struct{ atomic.Int64 }

// grown returns the cause of an event, or nil if the skew is small or already reported.
func (w *worst) grown(d time.Duration) error {
	old := w.Load()
	if d < max(reported, 2*time.Duration(old)) || !w.CompareAndSwap(old, int64(d)) {
		return nil
	}
	return fmt.Errorf("rowstore: clock skew: own clock %v behind the row, another is or was ahead", d.Round(time.Millisecond))
}
