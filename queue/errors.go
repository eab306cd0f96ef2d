package queue

// sentinel is an error to compare with; see outbound's.
type sentinel string

func (s sentinel) Error() string        { return string(s) }
func (s sentinel) RetryableError() bool { return false }

// Errors to compare with by errors.Is.
const (
	// ErrFull is why the queue refuses a call while MaxLen others wait. It comes inside an
	// [*outbound.ThrottledError].
	ErrFull = sentinel("queue: full")
	// ErrFar is why a queue without MaxWait refuses a call without a deadline: its place
	// would be more than a day away. It comes inside an [*outbound.ThrottledError].
	ErrFar = sentinel("queue: more than a day away")
	// ErrClosed is the error of every call after Shutdown or Close, and of the calls that
	// wait when Close is called. It is not outbound.ErrThrottled.
	ErrClosed = sentinel("queue: closed")
)
