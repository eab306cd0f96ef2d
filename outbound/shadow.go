package outbound

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ShadowConfig says what a [Shadow] stands for. Its zero value works.
type ShadowConfig struct {
	// MaxWait is that of the queue that is to come, queue.Config.MaxWait. 0: as there, a day
	// at most. For a bucket without a queue it is a nanosecond.
	MaxWait time.Duration
	// Independent says that calls come whether or not earlier ones were answered, as the
	// requests of users do. Without it callers are taken to wait for an answer before they
	// call again, as a pool of workers does, and no verdict tells how long a call would wait.
	Independent bool
}

// Shadow returns a Limiter to try limits with before they are enforced. It admits every call
// at once, and tells report, once for each call and when it ends, what a queue around b would
// have done with it. A nil report is told nothing, and books nothing.
//
// It never waits, refuses, or holds. It books the place of each call in b, so that b drains as
// it would if it were enforced. So nothing else may use b while it is shadowed: those calls
// would stand behind places that nobody waits for. What the API answers is counted and not
// heeded, because it answers calls that nobody paces. An error of Acquire, such as [ErrNil] for
// a nil b or [ErrInvalidDuration] for a negative MaxWait, is in the verdict.
//
// With Independent the waits and refusals are those of a queue with this MaxWait, but for what
// only the queue knows: its MaxLen, calls whose ctx is cancelled, and trips to a store. Of a
// window a queue foretells roughly, so near MaxWait one call may be refused for another. Where a
// limit counts by the calendar, a call that could go only after the next period counts as
// refused, though a queue with a long MaxWait lets it wait.
//
// A Finding is of all calls since Shadow was called. Call it again, with a new bucket, to find
// out about other limits.
//
// A bucket in this process is asked in the call of Acquire. For a shared one a goroutine
// makes the trip, at most 256 at a time, so that a store which hangs holds nobody up. Calls beyond
// these are not booked, and have a [*StoreError] in their verdicts. No panic, be it of report or of
// the store, reaches the caller. One of report is dropped.
//
// report is called by many goroutines at the same time, with no lock held, with the ctx of
// Acquire without its end. It must not block: Done may return only after it. A call whose permit
// nobody ends is not told.
func Shadow(b *Bucket, c ShadowConfig, report func(context.Context, Verdict)) Limiter {
	if report == nil {
		return openLimiter{}
	}
	s := &shadow{bucket: b, config: c, report: report}
	switch {
	case b.unmade():
		s.bad = errNilBucket
	case c.MaxWait < 0:
		s.bad = fmt.Errorf("%w: MaxWait %v of Shadow", ErrInvalidDuration, c.MaxWait)
	default:
		b.slowPath() // so that inForce is the same as long as the limits are
	}
	return s
}

// openLimiter admits also those calls whose ctx has ended.
type openLimiter struct{ Unlimited }

func (openLimiter) Acquire(context.Context, Cost) (Permit, error) { return Permit{}, nil }

// shadow is a Limiter that lets all calls go.
//
// Whether arrivals are independent it cannot see, and so its user says so. Take two programs:
// one starts a goroutine for each of ten calls, 50 ms apart, and the other makes them in one
// goroutine, each 50 ms after the answer to the one before, which comes at once. A limiter sees
// the same calls at the same times in both. Behind a queue of ten calls per second the first
// has a tenth call that waits for 459 ms. In the second no call waits for more than 52 ms.
// Calls in progress do not tell them apart, nor do contexts, which workers derive for each
// call. To believe in waits that never come is the worse mistake, and so that is what the user
// has to ask for.
type shadow struct {
	bucket   *Bucket
	config   ShadowConfig
	report   func(context.Context, Verdict)
	bad      error        // what is wrong with the bucket or the config
	underWay atomic.Int32 // trips to a store

	mu     sync.Mutex // protects what follows
	demand demand
	vacant []time.Time // the places of calls that have ended before these, where callers wait

	// Calls of which it is known what the limiter would have done:
	unknown int // nobody knows whether they would have gone
	waiting int // would have waited
	refused int // would have been refused
	// Calls that have ended, or were found out about:
	taken  int // of the refused, the API took
	said   int // the API has refused
	proofs int // of these, would have gone at once
}

// mostTrips is how many trips to a store a Shadow makes at a time. Each has a goroutine.
const mostTrips = 256

// Idle reports whether forgetting the bucket would lose nothing.
func (s *shadow) Idle() bool { return s.underWay.Load() == 0 && s.bucket.Idle() }

func (s *shadow) Acquire(ctx context.Context, c Cost) (Permit, error) {
	k := &shadowed{shadow: s, ctx: ctx, cost: [1]Cost{c}, arrived: time.Now()}
	switch err := ctx.Err(); {
	case s.bad != nil:
		k.verdict.Err = s.bad
	case err != nil:
		k.gone, k.verdict.Err = true, err
	case s.arrive(k):
		k.waits = true
	case s.run(k.book):
		return NewPermit(k), nil
	default:
		k.verdict.Err = &StoreError{Op: "book", Key: s.bucket.key, Err: errManyTrips}
	}
	k.over, k.verdict.Wait = true, -1
	s.judge(k)
	return NewPermit(k), nil
}

var (
	errManyTrips = errors.New("a Shadow has too many trips under way")
	errPanic     = errors.New("the store has panicked")
)

// arrive counts the call in the demand. It reports whether it takes over a place.
//
// Where callers wait for answers, one whose call has ended here, and would still wait, could
// not have made another. Its next call stands for the one that waits: else the bucket would
// have places booked for calls that nobody has made, without end.
func (s *shadow) arrive(k *shadowed) (takesOver bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.verdict.Demand = s.demand.add(s.bucket.inForce(), &k.cost[0], k.arrived)
	if s.config.Independent {
		return false
	}
	left := s.vacant[:0]
	for _, place := range s.vacant {
		if place.After(k.arrived) {
			left = append(left, place)
		}
	}
	s.vacant = left
	if len(left) == 0 {
		return false
	}
	k.place, s.vacant = left[0], left[1:]
	return true
}

// run has f make a trip, and reports whether it does.
func (s *shadow) run(f func()) bool {
	if !s.bucket.Shared() {
		f()
		return true
	}
	if s.underWay.Add(1) > mostTrips {
		s.underWay.Add(-1)
		return false
	}
	go func() {
		defer s.underWay.Add(-1)
		f()
	}()
	return true
}

// shadowed is the permit of a shadowed call.
type shadowed struct {
	shadow  *shadow
	ctx     context.Context // of Acquire
	cost    [1]Cost
	arrived time.Time

	mu      sync.Mutex // protects what follows, and is not held during a trip
	over    bool       // what the limiter would have done is known
	flags   uint8
	ticket  Ticket
	place   time.Time // when the call would have gone; zero: it would not, or nobody knows
	waits   bool      // it would not have gone at once
	used    Cost      // with flagSettled
	other   bool      // the API has refused it for another reason than a limit per time
	gone    bool      // its ctx had ended before it came
	told    bool
	verdict Verdict
}

// book books the call's place.
func (k *shadowed) book() {
	b, s := Booking{Costs: k.cost[:]}, k.shadow
	most, why := s.config.MaxWait, error(nil)
	if most == 0 {
		most = farthestShadow
	}
	if d, ok := k.ctx.Deadline(); ok && d.Sub(k.arrived) < most {
		most, why = d.Sub(k.arrived), context.DeadlineExceeded
	}
	b.Wait = max(0, most-time.Since(k.arrived)) + rounding
	err := error(&StoreError{Op: "book", Key: s.bucket.key, Err: errPanic})
	guard(func() { err = s.bucket.Book(context.Background(), &b) })

	k.mu.Lock()
	v, full := &k.verdict, (*ThrottledError)(nil)
	switch {
	case err == nil && len(b.Tickets) > 0:
		k.ticket = b.Tickets[0]
		k.place = b.Clock.Due(k.ticket)
		if k.waits = k.place.After(b.Clock.at); k.waits {
			v.Wait = max(0, k.place.Sub(k.arrived))
		}
		if !s.config.Independent {
			v.Wait = -1
		}
	case err == nil:
		v.Wait, v.Err = -1, &StoreError{Op: "book", Key: s.bucket.key, Err: errSilent}
	case errors.As(err, &full) && full.RetryAfter == 0: // nobody knows when a call in progress ends
		v.Wait = -1
	case full != nil && (!s.config.Independent || full.RetryAfter < b.Wait): // or a queue would ask again then
		v.Wait, k.waits = -1, true
	case full != nil:
		full.Err = why
		v.Err = full
	default:
		v.Err = err
		if away := (*StoreError)(nil); errors.As(err, &away) {
			v.Wait = -1
		}
	}
	k.over = true
	s.judge(k)
	settle, ends := k.flags&flagSettled != 0, k.flags&flagDone != 0
	k.mu.Unlock()
	if settle {
		k.settle()
	}
	if ends {
		k.end()
	}
}

const (
	farthestShadow = 24 * time.Hour        // what a queue without MaxWait lets a call wait
	rounding       = 10 * time.Microsecond // by how much later than MaxWait a queue lets a call go
)

// guard calls f, and drops its panic.
func guard(f func()) {
	defer func() { _ = recover() }()
	f()
}

// settle says what the call has really cost.
func (k *shadowed) settle() {
	if k.ticket.call != nil {
		guard(func() { k.ticket.call.Settle(k.used) })
	}
}

func (k *shadowed) Settle(used Cost) {
	k.mu.Lock()
	first := used.real() && k.flags&flagSettled == 0
	if first {
		if k.flags |= flagSettled; used == (Cost{}) {
			k.flags |= flagFailed
		}
		k.used = used
	}
	over := k.over
	k.mu.Unlock()
	if first && over && k.ticket.call != nil {
		k.shadow.run(k.settle)
	}
}

// Answered counts a refusal, and heeds nothing.
func (k *shadowed) Answered(a Answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if a.fails() {
		k.flags |= flagFailed
	}
	if a.Kind == AnswerRefused && !k.verdict.Refused {
		k.verdict.Refused, k.other = true, a.Reason == ReasonConcurrency
		if k.told { // too late for the verdict, and not for the finding
			k.shadow.mu.Lock()
			k.shadow.refusedLocked(k)
			k.shadow.mu.Unlock()
		}
	}
}

func (k *shadowed) Done() {
	k.mu.Lock()
	was := k.flags
	k.flags |= flagDone
	over := k.over
	k.mu.Unlock()
	if over && was&flagDone == 0 {
		k.end()
	}
}

// end counts the call and tells of it. It runs once: when the call has ended and what the
// limiter would have done is known.
func (k *shadowed) end() {
	if c := k.ticket.call; c != nil {
		c.leave() // without a trip: nothing has succeeded that the bucket is to hear of
	}
	k.mu.Lock()
	k.told = true
	k.verdict.Finding = k.shadow.count(k)
	v := k.verdict
	k.mu.Unlock()
	guard(func() { k.shadow.report(context.WithoutCancel(k.ctx), v) })
}

// judge counts a call of which it is now known what the limiter would have done. It may be in progress
// for long, and spoils a finding before it ends: it has gone, and may have taken the room of others.
func (s *shadow) judge(k *shadowed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch v := &k.verdict; {
	case k.gone: // the API hears nothing of it
	case v.refuses():
		s.refused++
	case v.Err != nil || v.Wait < 0 && s.config.Independent || k.place.IsZero() && !k.waits:
		s.unknown++
	case k.waits:
		s.waiting++
	}
}

// refuses reports whether the limiter would have refused the call.
func (v *Verdict) refuses() bool {
	return errors.Is(v.Err, ErrThrottled) || errors.Is(v.Err, ErrTooLarge)
}

// count counts a call that has ended, and returns what all of them say.
func (s *shadow) count(k *shadowed) Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &k.verdict
	if v.refuses() && k.flags&flagFailed == 0 {
		s.taken++
	}
	if !s.config.Independent && k.place.After(time.Now()) {
		s.vacant = append(s.vacant, k.place)
	}
	if v.Refused {
		s.refusedLocked(k)
	}
	return s.findingLocked()
}

// refusedLocked counts a call that the API has refused.
//
// That proves something only of a call that would have gone at once, for a limit per time. All calls
// before it would have left by then, and none of them earlier than they have: so the API, be
// its limit a leak or a window, would have had no more room for this one.
func (s *shadow) refusedLocked(k *shadowed) {
	s.said++
	if !k.place.IsZero() && !k.waits && !k.other {
		s.proofs++
	}
}

// findingLocked returns what the calls say. Where callers wait for answers, one that would have
// waited would have put all off that its caller did later.
func (s *shadow) findingLocked() Finding {
	switch {
	case s.proofs > 0 && s.refused+s.unknown == 0 && (s.config.Independent || s.waiting == 0):
		return FindingTooHigh
	case s.taken > 0 && s.said == 0:
		return FindingTooLow
	}
	return FindingNone
}
