package queue

import "github.com/dripfeed/dripfeed/outbound/leak"

// Errors to compare with by errors.Is.
const (
	// ErrFull is why the queue refuses a call while MaxLen others wait. It comes inside an
	// [*outbound.ThrottledError].
	ErrFull = leak.Sentinel("queue: full")
	// ErrFar is why a queue without MaxWait refuses a call without a deadline: it is the first to
	// be booked, and its place would be more than a day away. It comes inside an
	// [*outbound.ThrottledError].
	ErrFar = leak.Sentinel("queue: more than a day away")
	// ErrClosed is the error of every call after Shutdown or Close, and of the calls that
	// wait when Close is called. It is not outbound.ErrThrottled.
	ErrClosed = leak.Sentinel("queue: closed")
)
