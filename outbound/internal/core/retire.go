package core

import "sync"

// Lately is how many calls that have ended on a processor are kept for late answers, before the
// oldest of them is used again for another call. Those of an idle process are forgotten: they are
// in a pool.
const Lately = 1024

// Ring has calls that have ended, oldest first.
type Ring struct {
	calls   []*Call
	next, n int // the next to be used again, and how many there are
}

// Rings are those of the processors.
var Rings = sync.Pool{New: func() any { return RingOf(Lately) }}

// RingOf returns a ring for so many calls.
func RingOf(n int) *Ring { return &Ring{calls: make([]*Call, n)} }

// retire keeps a call that has ended.
func retire(k *Call) {
	r := Rings.Get().(*Ring)
	if r.n == len(r.calls) { // the oldest is left to its permit
		r.take()
	}
	r.calls[r.wrap(r.next+r.n)] = k
	r.n++
	Rings.Put(r)
}

// take takes the oldest out.
func (r *Ring) take() (k *Call) {
	k, r.calls[r.next] = r.calls[r.next], nil
	r.next, r.n = r.wrap(r.next+1), r.n-1
	return k
}

// wrap returns where the ring continues. A division would take as long as a lock.
func (r *Ring) wrap(at int) int {
	if at >= len(r.calls) {
		return at - len(r.calls)
	}
	return at
}

// revive returns an object for a new call, and how often it has been used.
func revive() (k *Call, uses uint32) {
	r := Rings.Get().(*Ring)
	if r.n == len(r.calls) {
		k = r.take()
	}
	// A late answer at this moment keeps the object. It may wait for the lock of the key, which this
	// caller holds.
	if Rings.Put(r); k == nil || !k.mu.TryLock() {
		return &Call{uses: 1}, 1
	}
	k.uses, k.flags = max(1, k.uses+1), 0
	uses = k.uses
	k.mu.Unlock()
	return k, uses
}
