package queue

import (
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Errors to compare with by errors.Is.
const (
	// ErrFull is why the queue refuses a call while MaxLen calls wait. It comes inside an
	// [*outbound.ThrottledError].
	ErrFull = store.Sentinel("queue: full")
	// ErrFar is why a queue refuses a call that would wait for more than a day, if neither MaxWait
	// nor a deadline of its ctx bounds the wait. It comes inside an [*outbound.ThrottledError].
	ErrFar = store.Sentinel("queue: more than a day away")
	// ErrClosed is the error of every call after Shutdown or Close, and of the calls that
	// wait when Close is called. It comes inside an [*outbound.ClosedError], and is not
	// outbound.ErrThrottled.
	ErrClosed = store.Sentinel("queue: closed")
)

func (q *Queue) closedError() error {
	return &outbound.ClosedError{Key: q.bucket.Key(), Err: ErrClosed}
}
