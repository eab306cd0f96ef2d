package outbound

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/core"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Errors to compare with by [errors.Is].
const (
	// ErrThrottled is what every [*ThrottledError] is.
	ErrThrottled = store.Sentinel("outbound: rate limited")
	// ErrTooLarge is a cost above the capacity of a limit.
	// See [*CostError].
	ErrTooLarge = store.Sentinel("outbound: cost too large")
	// ErrInvalid is a mistake in the program. A [*CostError] has a cost with a number that is NaN,
	// infinite, negative or missing, and a [*LimitError] a limit. Other arguments are nil or out of
	// range.
	ErrInvalid = store.Sentinel("outbound: invalid argument")
	// ErrFull is a [Keyed] that has Max keys.
	ErrFull = store.Sentinel("outbound: too many keys")
)

// ThrottledError is a call over the limit. Nothing was charged. It is [ErrThrottled], and wraps
// Err. A call whose ctx had ended when it came, or ended during a request to a store, gets the
// ctx's own error instead: the limiter may have had capacity.
//
// Its text begins with "outbound: rate limited" and the key, and has the cause:
//
//   - is over the limit "10 per 1s": the limit has no capacity. In a queue the call would wait.
//   - is on hold: an operator has asked for a pause, or the API without a reason.
//   - is on hold after the API asked for a pause (rate): the API has refused a call.
//   - is on hold until the API's quota resets: nothing remains of it.
//   - 3 calls in progress, the oldest for 15s: an [InFlight] is full.
//   - the call cannot meet the deadline: it would leave after that.
//   - the call waited for 10s and can no longer meet the deadline.
//
// It also has the time until the retry.
type ThrottledError struct {
	// Key is the key of the bucket, or its label: see [Keyed].
	Key string
	// Limit is the label of the limit that refuses the call: its name, or its numbers if it has none,
	// such as "10 per 1s". [State.Label], events and metrics have the same. It is empty if the call
	// waits for a hold or for booked calls alone, or if a Keyed is full.
	Limit string
	// RetryAfter is how long until the same call would be admitted if no other call comes before.
	// It is 0 if it is unknown: the limit is one on calls in flight, a Keyed is full, or the call
	// waited until its deadline. From a queue it may be a lower bound: see package queue. If all
	// processes share the calls in flight, it is when to ask again.
	RetryAfter time.Duration
	// Held is true during a hold: the API or an operator has asked for a pause.
	Held bool
	// Reason is why, while Held, as [Answer.Reason] has it.
	Reason string
	// InProgress is how many calls are in progress in this process, if the limit is an [InFlight],
	// and Oldest the age of the first. If that is longer than any call takes, the program forgot to
	// end it, for instance to close the body of a response.
	InProgress int
	Oldest     time.Duration
	// Err is why a call that could wait does not: one that wraps [context.DeadlineExceeded] for an
	// early refusal, or a queue's reason. It is nil if the caller did not want to wait, or not as long.
	Err error
}

// tardy is the Err of a call that cannot meet its deadline.
type tardy struct {
	error             // context.DeadlineExceeded
	left, ran, waited time.Duration
}

func (t *tardy) Unwrap() error { return t.error }

// Late sets Err for a call that came at this time, and cannot meet the deadline of ctx: Left, Ran
// and Waited return its times from then on. It is for limiters that wait.
func (e *ThrottledError) Late(ctx context.Context, came time.Time) {
	t := &tardy{error: context.DeadlineExceeded, waited: time.Since(came)}
	end, ok := ctx.Deadline()
	if t.ran = ran(ctx, end, came.Sub(start)); ok {
		t.left = max(0, end.Sub(came))
	}
	e.Err = t
}

// tardy returns the times of a call that cannot meet its deadline, or zeros.
func (e *ThrottledError) tardy() tardy {
	if t, ok := e.Err.(*tardy); ok {
		return *t
	}
	return tardy{}
}

// Left returns how long before its deadline the call came, if Err is that it cannot meet that.
func (e *ThrottledError) Left() time.Duration { return e.tardy().left }

// Ran returns how long the job of the call's ctx had run when the call came, if Err is that the
// call cannot meet its deadline. If that is longer than Left, the job's own work has taken most of
// the time, and the limiter is not the cause. It is 0 outside of [Do], [Wrap] and [Each].
func (e *ThrottledError) Ran() time.Duration { return e.tardy().ran }

// Waited returns how long the call had waited, if Err is that it can no longer meet its deadline.
func (e *ThrottledError) Waited() time.Duration { return e.tardy().waited }

func (e *ThrottledError) Error() string {
	s := "outbound: rate limited"
	if e.Key != "" || e.Limit != "" { // a full Keyed refuses without a bucket
		s += ": " + spec.Quote(e.Key)
	}
	switch {
	case e.Held:
		s += " is on hold"
		switch e.Reason {
		case "": // an operator's hold, or a pause whose reason the API has not named
		case "exhausted":
			s += " until the API's quota resets"
		default:
			s += " after the API asked for a pause (" + e.Reason + ")"
		}
		if e.Limit != "" {
			s += " and"
		}
	case e.Limit != "":
		s += " is"
	}
	if e.Limit != "" {
		s += " over the limit " + spec.Quote(e.Limit)
	}
	if e.RetryAfter > 0 {
		s += ", retry in " + inMillis(e.RetryAfter)
	}
	if e.InProgress > 0 {
		s += ", " + progress(e.InProgress, e.Oldest)
	}
	if errors.Is(e.Err, context.DeadlineExceeded) {
		t := e.tardy()
		waited := e.RetryAfter == 0 && t.waited >= time.Millisecond
		if s += ": the call cannot meet the deadline"; waited {
			s = strings.TrimSuffix(s, "cannot meet the deadline") + "waited for " + inMillis(t.waited) + " and can no longer meet the deadline"
		}
		if t.left > 0 && !waited {
			s += " in " + inMillis(t.left)
		}
		if t.ran > 0 {
			s += " after the job ran for " + inMillis(t.ran)
		}
	}
	if e.Err != nil {
		s += ": " + strings.TrimPrefix(e.Err.Error(), "outbound: ")
	}
	return s
}

// inMillis returns d in whole milliseconds, rounded up.
func inMillis(d time.Duration) string {
	return ((d + time.Millisecond - 1) / time.Millisecond * time.Millisecond).String()
}

// progress describes calls in progress: "3 calls in progress, the oldest for 15s".
func progress(n int, oldest time.Duration) string {
	s := strconv.Itoa(n) + " calls in progress, the oldest for "
	if n == 1 {
		s = "1 call in progress, for "
	}
	return s + (oldest - oldest%time.Millisecond).String()
}

// Is reports that the error is [ErrThrottled].
func (e *ThrottledError) Is(target error) bool { return target == ErrThrottled }

// Unwrap returns Err.
func (e *ThrottledError) Unwrap() error { return e.Err }

// Timeout reports whether Err is a timeout, as a context's deadline is.
func (e *ThrottledError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

// RetryableError is false: an immediate retry fails, so wait for RetryAfter.
func (e *ThrottledError) RetryableError() bool { return false }

// CostError is a cost that can never be admitted. It is [ErrTooLarge] or [ErrInvalid]. Nothing was
// charged.
type CostError struct {
	// Key is the key of the bucket.
	Key string
	// Limit is the limit that is too small, or that counts the number which is missing. It is
	// zero if a number is invalid.
	Limit Limit
	// Cost is what the call would take.
	Cost Cost
	// Headroom is how many units of the limit the call's queue keeps free for other calls.
	Headroom float64
	// Err is ErrTooLarge or ErrInvalid.
	Err error
}

func (e *CostError) Error() string {
	if e.Err != ErrTooLarge && e.Limit.Capacity > 0 {
		return fmt.Sprintf("outbound: cost %v for %s lacks number %d (limit %s): write outbound.Free for none",
			[units]float64(e.Cost), spec.Quote(e.Key), e.Limit.Unit, spec.Quote(e.Limit.label()))
	}
	if e.Err != ErrTooLarge {
		return fmt.Sprintf("outbound: invalid cost %v for %s", [units]float64(e.Cost), spec.Quote(e.Key))
	}
	n, cure := e.Cost[e.Limit.Unit], "split the call"
	if e.Limit.form.Kind == store.Leaky && n <= e.Limit.form.N { // of Per
		cure = "use Window or Burst(" + spec.Number(n) + ")"
	}
	if e.Headroom > 0 {
		return fmt.Sprintf("outbound: cost %s for %s exceeds limit %s less %s kept free: %s", spec.Number(n), spec.Quote(e.Key), e.Limit, spec.Number(e.Headroom), cure)
	}
	return fmt.Sprintf("outbound: cost %s for %s exceeds limit %s: %s", spec.Number(n), spec.Quote(e.Key), e.Limit, cure)
}

// Unwrap returns Err.
func (e *CostError) Unwrap() error { return e.Err }

// RetryableError is false: the cost can never be admitted.
func (e *CostError) RetryableError() bool { return false }

// LimitError is an invalid limit. It is [ErrInvalid].
type LimitError struct {
	// Key is the key of the bucket. It is empty if the limit was read from text.
	Key string
	// Limit is the limit, or zero where all of them together are wrong.
	Limit Limit
	// Reason says what is wrong.
	Reason string
}

func (e *LimitError) Error() string {
	if e.Key == "" { // a text, and not a bucket's
		return "outbound: invalid limit: " + e.Reason
	}
	return "outbound: invalid limit for " + spec.Quote(e.Key) + ": " + e.Reason
}

// Unwrap returns [ErrInvalid].
func (e *LimitError) Unwrap() error { return ErrInvalid }

// RetryableError is false: the limit stays invalid.
func (e *LimitError) RetryableError() bool { return false }

// StoreError is a failure of a store. It is unknown whether the operation took effect. If it did,
// capacity was lost, and none was gained. While the store is unavailable it is
// [store.ErrUnavailable], and later calls fail without a wait until it answers again. Package
// fallback admits calls meanwhile.
type StoreError struct {
	// Op is the operation: a call does "book". It may be "fillup" or "hold", …
	Op string
	// Key is the key of the bucket.
	Key string
	// Err is the driver's error.
	Err error
}

func (e *StoreError) Error() string {
	return "outbound: " + e.Op + " " + spec.Quote(e.Key) + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *StoreError) Unwrap() error { return e.Err }

// RetryableError is false: the store has done its own retries.
func (e *StoreError) RetryableError() bool { return false }

// ClosedError is a call of a limiter that was closed, such as a queue. Nothing was charged.
type ClosedError struct {
	// Key is the key of the bucket.
	Key string
	// Err is queue.ErrClosed.
	Err error
}

func (e *ClosedError) Error() string { return e.Err.Error() + ": " + spec.Quote(e.Key) }

// Unwrap returns Err.
func (e *ClosedError) Unwrap() error { return e.Err }

// RetryableError is false: the limiter stays closed.
func (e *ClosedError) RetryableError() bool { return false }

// relabel returns err with a label as the key of the error of this package that it is or wraps. It
// is a copy, because another goroutine may have the error, too.
func relabel(err error, label string) error {
	for _, kind := range [...]any{new(*ThrottledError), new(*CostError), new(*LimitError), new(*StoreError), new(*ClosedError)} {
		if errors.As(err, kind) {
			found := reflect.ValueOf(kind).Elem()
			own := reflect.New(found.Type().Elem())
			own.Elem().Set(found.Elem())
			own.Elem().FieldByName("Key").SetString(label)
			labelled := own.Interface().(error)
			if err == found.Interface() {
				return labelled
			}
			return &relabelled{labelled, err}
		}
	}
	return err
}

// relabelled is an error that wraps one with a key. Its text is that of the one with the label, and
// not the wrapper's, which may show the key.
type relabelled struct{ own, err error }

func (e *relabelled) Error() string { return e.own.Error() }

// Unwrap has errors.As find the error with the label first.
func (e *relabelled) Unwrap() []error { return []error{e.own, e.err} }

// check returns why a call of this cost, which keeps a fraction of each limit free, can never be
// admitted by these limits of a bucket, or nil.
func check(set *key.Limits, bucket string, c *Cost, headroom float64) error {
	if !c.valid() {
		return &CostError{Key: bucket, Cost: *c, Err: ErrInvalid}
	}
	if bad := core.Fits(set, c.numbers(), headroom); bad != nil {
		return costError(bucket, bad)
	}
	return nil
}

// costError returns the error of a cost that limits can never admit.
func costError(bucket string, bad *core.Misfit) *CostError {
	e := &CostError{Key: bucket, Limit: limitOf(spec.OfLaw(bad.Limit)), Cost: bad.Cost, Headroom: bad.Headroom, Err: ErrTooLarge}
	if bad.Lacks {
		e.Err = ErrInvalid
	}
	return e
}

// failure returns the error of a step for callers.
func (b *Bucket) failure(err error) error {
	switch e := err.(type) {
	case *core.Misfit:
		return costError(b.core.Name, e)
	case *core.Failure:
		if err = e.Err; err == key.ErrLimits {
			err = &LimitError{Reason: err.Error()}
		}
		return &StoreError{Op: e.Op, Key: b.core.Name, Err: err}
	case *core.Refusal:
		full := b.throttled(e.Force, e.Wait, e.Held, e.Why, e.Limit)
		if e.NoSlot {
			p := b.core.Slots()
			if l := p.Limit(); l != nil {
				full.Limit = spec.OfSlots(l).Label()
			}
			full.InProgress, full.Oldest = p.Crowd()
		}
		return full
	}
	return err
}

// throttled returns the refusal of a call that would leave after a wait, while rem of a hold is
// left, because of a limit of f; -1: because of none.
func (b *Bucket) throttled(f *key.Force, wait, rem time.Duration, why uint8, limit int) *ThrottledError {
	e := &ThrottledError{Key: b.core.Name, RetryAfter: wait, Held: rem > 0}
	if e.Held {
		e.Reason = reasonOf(why)
	}
	if limit >= 0 {
		e.Limit = b.core.Label(&f.Limits, limit)
	}
	return e
}
