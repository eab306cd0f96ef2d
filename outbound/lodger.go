package outbound

import (
	"math"
	"sync/atomic"
	"time"
)

// tenant is a limiter in a [Keyed]: a *Bucket, or a *lodger around any other.
type tenant interface {
	Limiter
	idler
	pinned() *atomic.Int32 // counts the permits that are out
	touch()                // notes that it has admitted a call
	last() time.Duration   // when it did
}

func tenantOf(l Limiter) tenant {
	if b, ok := l.(*Bucket); ok {
		if b == nil {
			return nil
		}
		return b
	}
	if l == nil {
		return nil
	}
	return &lodger{Limiter: l}
}

func (b *Bucket) pinned() *atomic.Int32 { return &b.pins }

func (b *Bucket) touch() {
	if b.word.Load() == busy { // the fast path notes it by itself
		b.seen.Store(int64(now()))
	}
}

func (b *Bucket) last() time.Duration { return time.Duration(b.seen.Load()) }

// lodger is a limiter that is not a bucket.
type lodger struct {
	Limiter
	pins atomic.Int32
	seen atomic.Int64
}

func (l *lodger) Idle() bool {
	i, ok := l.Limiter.(idler)
	return ok && i.Idle()
}

func (l *lodger) pinned() *atomic.Int32 { return &l.pins }
func (l *lodger) touch()                { l.seen.Store(int64(now())) }
func (l *lodger) last() time.Duration   { return time.Duration(l.seen.Load()) }

// dropping is added to the count of permits while somebody looks whether to
// drop a limiter, and stays if it was dropped. So of two that happen at the
// same time, a call that is admitted and then counts itself, and one that marks
// the count and then looks whether the limiter is idle, one sees the other.
const dropping = math.MinInt32 / 2

// mark marks the count, and returns what it is.
func mark(pins *atomic.Int32) int32 {
	for {
		n := pins.Load()
		if n < dropping/2 { // dropped under another key: New may share limiters
			return n - dropping
		}
		if pins.CompareAndSwap(n, n+dropping) {
			return n
		}
	}
}

// keep takes the mark away.
func keep(pins *atomic.Int32) {
	for {
		n := pins.Load()
		if n >= dropping/2 || pins.CompareAndSwap(n, n-dropping) {
			return
		}
	}
}

// drops reports whether l is to be dropped, at time t, if it has not been used
// for a while. If not, it is left as it was.
func drops(l tenant, t, unused time.Duration) bool {
	if mark(l.pinned()) > 0 {
		unused = forgotten
	}
	// A subtraction could overflow: a bucket that was never used was last used
	// at the beginning of time.
	if l.last() <= t-unused && l.Idle() {
		return true
	}
	keep(l.pinned())
	return false
}
