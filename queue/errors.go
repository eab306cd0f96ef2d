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
	// ErrClosed is the error of every call after Shutdown or Close, and of
	// those that Close finds waiting. It is not outbound.ErrThrottled.
	ErrClosed = sentinel("queue: closed")
)
