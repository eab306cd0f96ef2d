package fallback

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// state says where calls go.
type state int32

const (
	// there: calls go to the store.
	there state = iota
	// away: calls go to the degraded keys, or fail.
	away
	// returning: a call goes to the store after the pause, and after the store is
	// charged with what the call's key has spent.
	returning
)

const (
	minRetry = 100 * time.Millisecond
	maxRetry = time.Second
	// never is the next try while a call makes one.
	never = time.Duration(math.MaxInt64)
)

// breaker is the circuit breaker of a [Store]: it keeps the state and the time of the next
// try. The Store's lock protects all of it; calls read the state without the lock as well.
//
//	there     -> away       a trip found the store away
//	away      -> returning  a try reached the store, and the wait for the other workers is over
//	returning -> there      every key is charged, and the pause is over
//	returning -> away       a trip found the store away again
type breaker struct {
	state   atomic.Int32
	cause   error         // the store's latest error, while away
	since   time.Duration // when the store was found away, by this process's clock
	nextTry time.Duration // when the next try is due, while away
	retryIn time.Duration // the time between two tries, before a random part is taken off
	back    time.Duration // when the store was last used again
	opens   time.Duration // when the pause of the return is over
	returns bool          // a try has reached the store, while away: it is used again at until
	until   time.Duration
	outages uint64 // how often the store was found away
}

func (b *breaker) in(s state) bool { return state(b.state.Load()) == s }

func (b *breaker) set(s state) { b.state.Store(int32(s)) }

// leave marks the store away since t and reports whether it was in use. If the last outage
// ended no more than 2 s ago, the time between tries goes on growing.
func (b *breaker) leave(err error, t time.Duration) bool {
	if b.in(away) {
		return false
	}
	b.set(away)
	b.cause, b.since, b.returns = err, t, false
	b.outages++
	if b.retryIn == 0 || t-b.back > 2*maxRetry {
		b.retryIn = minRetry / 2
	}
	return true
}

// postpone sets the time of the next try and returns how far away it is.
func (b *breaker) postpone(t time.Duration) time.Duration {
	b.retryIn = min(2*b.retryIn, maxRetry)
	in := b.retryIn/2 + rand.N(b.retryIn/2)
	b.nextTry = t + in
	return in
}

// comeBack begins the return, in which no call goes before the pause is over.
func (b *breaker) comeBack(t, pause time.Duration) {
	b.set(returning)
	b.cause, b.back, b.opens = nil, t, t+pause
}

// settle ends the return when no key is left to charge and the pause is over.
func (b *breaker) settle(t time.Duration, keys int) {
	if b.in(returning) && keys == 0 && t >= b.opens {
		b.set(there)
	}
}
