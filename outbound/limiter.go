package outbound

import "context"

// Limiter admits calls. A [Bucket] admits at once or refuses; a queue around
// it waits; [Unlimited] admits everything; yours does what you need, with
// [NewPermit].
//
// Acquire returns nil and a permit, which the caller ends with Done when the
// call is over, or an error and no charge.
type Limiter interface {
	Acquire(ctx context.Context, c Cost) (Permit, error)
}

// Unlimited is a [Limiter] that admits every call, for tests and for callers
// that are not to be paced.
type Unlimited struct{}

// Acquire returns a permit with nothing to do, or the error of ctx.
func (Unlimited) Acquire(ctx context.Context, _ Cost) (Permit, error) {
	return Permit{}, ctx.Err()
}

// Idle is true: there is nothing to forget.
func (Unlimited) Idle() bool { return true }
