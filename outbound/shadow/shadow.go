// Package shadow tries a limit before it is enforced. A shadow admits every call immediately, and
// reports for each whether a queue would have made it wait or refused it, and for how long.
//
//	limiter := shadow.New(bucket, time.Minute, func(_ context.Context, v shadow.Verdict) {
//		log.Print(v) // would wait 480ms
//	})
//
// A verdict takes calls to come whether or not earlier ones were answered, as requests of users do.
// Callers that wait for an answer before they call again are slowed down by a queue, and call
// less often. Their real waits are shorter than the verdicts, and fewer calls are refused.
// For them a verdict means only that more calls came than the limit admits in that time.
//
// A shadow reserves a time in the bucket for each call, so that the bucket drains as if it
// were enforced. Give each shadow a bucket, and in a store a key, that no other limiter uses.
package shadow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Verdict is what a queue would have done with a call.
type Verdict struct {
	// Wait is how long the call would have waited. It is -1 if that is unknown: the call was
	// refused, the store has failed, or calls in progress used all of an [outbound.InFlight].
	Wait time.Duration
	// Err is the error that the queue would have returned, such as an
	// [*outbound.ThrottledError]. If Err is nil, the call would have been admitted.
	// An [*outbound.StoreError] means that the store has failed and the verdict is unknown.
	Err error
}

// String returns the verdict in words: "would wait 480ms".
func (v Verdict) String() string {
	switch {
	case v.Err != nil:
		return v.Err.Error()
	case v.Wait < 0:
		return "would wait for an unknown time"
	case v.Wait == 0:
		return "would leave now"
	}
	return "would wait " + v.Wait.Round(min(time.Millisecond, v.Wait)).String()
}

// New returns a limiter that admits every call immediately, and calls report once for each.
// It never waits, refuses or holds, and it ignores what the API answers. If report is nil, it
// books nothing.
//
// maxWait is the MaxWait of the queue that the shadow stands for. If maxWait is zero, a call may
// wait for a day. For a bucket without a queue maxWait is a nanosecond. An error of Acquire, such
// as [outbound.ErrInvalid] for a nil b, is in the verdict.
//
// The waits and refusals are those of a queue with this MaxWait. This does not cover:
//   - the MaxLen and the CallTime of the queue, calls whose ctx is cancelled, and round trips to a
//     store
//   - calls near MaxWait at a window, where the queue only estimates
//   - a call that a calendar limit admits only after its next period, which counts as refused
//
// A bucket in this process is asked within Acquire. For a shared bucket a goroutine asks the
// store, at most 256 at a time, so a store that hangs delays no call. A call beyond these is
// not booked, and its verdict has an [*outbound.StoreError].
//
// report is called by many goroutines at the same time, within Acquire if the bucket is in this
// process. Its ctx is that of Acquire without its end. It must not block. A panic of report or of
// the store does not reach the caller, and is dropped.
func New(b *outbound.Bucket, maxWait time.Duration, report func(context.Context, Verdict)) outbound.Limiter {
	if report == nil {
		report = func(context.Context, Verdict) {}
		b = nil
	}
	return &shadow{bucket: b, maxWait: maxWait, report: report}
}

type shadow struct {
	bucket   *outbound.Bucket
	maxWait  time.Duration
	report   func(context.Context, Verdict)
	inFlight atomic.Int32 // requests to a store
}

const (
	mostRequests = 256                   // to a store at a time, each with a goroutine
	farthest     = 24 * time.Hour        // how long a queue without MaxWait lets a call wait
	rounding     = 10 * time.Microsecond // by how much later than MaxWait a queue admits a call
)

var (
	errManyRequests = errors.New("too many requests of this shadow wait for the store")
	errPanic        = errors.New("the store has panicked")
	errSilent       = errors.New("the store has neither booked nor refused")
)

// Idle reports whether forgetting the bucket would lose nothing.
func (s *shadow) Idle() bool {
	return s.inFlight.Load() == 0 && (s.bucket == nil || s.bucket.Idle())
}

func (s *shadow) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	k := &call{shadow: s, ctx: ctx, cost: [1]outbound.Cost{c}, arrived: time.Now(), busy: true}
	var err error
	switch {
	case s.bucket == nil:
		err = fmt.Errorf("%w: shadow: no bucket", outbound.ErrInvalid)
	case s.maxWait < 0:
		err = fmt.Errorf("%w: shadow: maxWait %v", outbound.ErrInvalid, s.maxWait)
	case ctx.Err() != nil:
		err = ctx.Err()
	case s.run(k.book):
		return outbound.NewPermit(k), nil
	default:
		err = s.failed(errManyRequests)
	}
	k.notify(Verdict{Wait: -1, Err: err})
	return outbound.Permit{}, nil
}

func (s *shadow) failed(err error) error {
	return &outbound.StoreError{Op: "book", Key: s.bucket.Key(), Err: err}
}

// run calls f, in a goroutine if the bucket is shared. It reports whether it does.
func (s *shadow) run(f func()) bool {
	if !s.bucket.Shared() {
		f()
		return true
	}
	if s.inFlight.Add(1) > mostRequests {
		s.inFlight.Add(-1)
		return false
	}
	go func() {
		defer s.inFlight.Add(-1)
		f()
	}()
	return true
}

// guard calls f, and drops its panic.
func guard(f func()) {
	defer func() { _ = recover() }()
	f()
}

// call is the permit of a call.
type call struct {
	shadow  *shadow
	ctx     context.Context // of Acquire
	cost    [1]outbound.Cost
	arrived time.Time
	permit  outbound.Permit // of the reservation, for the goroutine that has set busy

	mu    sync.Mutex      // protects what follows, and is free during a request to a store
	busy  bool            // a goroutine uses permit
	used  []outbound.Cost // to settle
	ended bool
}

func (k *call) notify(v Verdict) {
	guard(func() { k.shadow.report(context.WithoutCancel(k.ctx), v) })
}

// book reserves a time for the call, and reports the verdict.
func (k *call) book() {
	k.notify(k.verdict())
	k.finish()
}

func (k *call) verdict() Verdict {
	b, s := outbound.BookRequest{Costs: k.cost[:]}, k.shadow
	most, why := s.maxWait, error(nil)
	if most == 0 {
		most = farthest
	}
	if d, ok := k.ctx.Deadline(); ok && d.Sub(k.arrived) < most {
		most, why = d.Sub(k.arrived), context.DeadlineExceeded
	}
	b.Wait = max(0, most-time.Since(k.arrived)) + rounding
	err := s.failed(errPanic)
	guard(func() { err = s.bucket.Book(context.Background(), &b) })
	full := (*outbound.ThrottledError)(nil)
	switch {
	case err == nil && len(b.Tickets) > 0:
		t := b.Tickets[0]
		k.permit = t.Permit()
		if ready, _ := b.Clock.Ready(t, time.Now()); ready {
			return Verdict{}
		}
		return Verdict{Wait: max(0, b.Clock.Due(t).Sub(k.arrived))}
	case err == nil:
		err = s.failed(errSilent)
	case errors.As(err, &full):
		if full.RetryAfter < b.Wait { // a queue would ask again then
			return Verdict{Wait: -1}
		}
		if full.Err = why; why == context.DeadlineExceeded {
			full.Late(k.ctx, k.arrived)
		}
	}
	return Verdict{Wait: -1, Err: err}
}

// finish settles and ends the reservation, until nothing is left to do.
func (k *call) finish() {
	for {
		k.mu.Lock()
		used, ended := k.used, k.ended
		if k.used, k.ended = nil, false; len(used) == 0 && !ended {
			k.busy = false
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		for _, c := range used {
			guard(func() { k.permit.Settle(c) })
		}
		if ended {
			k.permit.Failed() // a success would need a request, and no refusal is counted
		}
	}
}

// begin notes the work, and reports whether no other goroutine does it.
func (k *call) begin(note func()) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	note()
	was := k.busy
	k.busy = true
	return !was
}

func (k *call) Settle(used outbound.Cost) {
	if k.begin(func() { k.used = append(k.used, used) }) && !k.shadow.run(k.finish) {
		k.mu.Lock()
		k.used = nil // the charge stays
		k.mu.Unlock()
		k.finish()
	}
}

func (k *call) Answered(outbound.Answer) {}

func (k *call) TakesAnswers() bool { return false } // the transport inside reads the response

func (k *call) Done() {
	if k.begin(func() { k.ended = true }) {
		k.finish()
	}
}
