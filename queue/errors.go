package queue

// sentinel is an error to compare with; see outbound's.
type sentinel string

func (s sentinel) Error() string        { return string(s) }
func (s sentinel) RetryableError() bool { return false }

// Errors to compare with by errors.Is.
const (
	// ErrFull is why a call is refused when MaxLen others wait. It comes inside
	// an [*outbound.ThrottledError].
	ErrFull = sentinel("queue: full")
	// ErrFar is why a call without a deadline, in a queue without MaxWait, is refused
	// when its place would be more than a day away. It comes inside an
	// [*outbound.ThrottledError].
	ErrFar = sentinel("queue: more than a day away")
	// ErrClosed is the error of every call after Shutdown or Close, and of
	// those that Close finds waiting. It is not outbound.ErrThrottled.
	ErrClosed = sentinel("queue: closed")
)
