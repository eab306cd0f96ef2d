package outbound

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/changes"
	"github.com/dripfeed/dripfeed/outbound/internal/core"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Bucket paces calls by one to eight limits in up to four units. A call takes its cost from all of
// them or from none. Calls over a limit are refused immediately, with the time to retry
// ([ThrottledError]). A queue around the bucket makes them wait instead.
//
// Calls leave in the order of booking. If a queue has booked a call that waits for one limit, no
// later call leaves before it, even if it takes nothing from that limit. Such a call is refused
// until then, even if State shows its own limits as empty. Calls that should not wait for each
// other, such as one report an hour and ten rows a second, need two buckets.
//
// A Bucket is safe for concurrent use. To admit a call of one unit in memory allocates only while
// calls are booked, with an InFlight, and in the first thousand calls. The program in
// testdata/peers measures all kinds of decisions. A bucket has no goroutine. Every call of a nil or
// zero Bucket returns [ErrInvalid].
type Bucket struct{ core core.Core }

// NewBucket returns a bucket in the memory of this process, or a [*LimitError]. The key names it in
// errors and events; every call of NewBucket makes a bucket of its own, whatever the key.
func NewBucket(key string, limits ...Limit) (*Bucket, error) {
	var one [1]spec.Limit // most have one, which needs no slice on the heap
	own, err := checkLimits(one[:0], key, limits, false)
	if err != nil {
		return nil, err
	}
	b := new(Bucket)
	b.core.Init(key, own, nil, "")
	return b, nil
}

// NewSharedBucket returns a bucket whose state is in a store, under the key. All buckets with the
// same key there are one, and one set of limits is in force for all of them.
//
// If processes have different limits for a key, those of the newest process count. The rest adopt
// them with the reply to their next call. So in a rollout the new release counts as soon as its
// first process has called. A process that started within a second of another does not replace its
// limits. Two programs with different limits for one key replace each other's whenever one of them
// is restarted: give each a key of its own.
//
// If a process of the old release restarts, its limits count again until a new one starts. That is
// wrong if the vendor has lowered its limit. Then number the limits: those of the highest
// [Limit.Version] count, whichever process starts last. A store keeps limits with a version for 30
// days after their last use, and other ones until their levels have drained.
//
// [Bucket.SetLimits] sets limits for all processes, which hold until the program's own change.
// [Bucket.Observe] reports each change as an [EventLimits] with both.
//
// Limits are the same if Unit, Name and kind are the same, and without a Name their window, or
// their period and zone: those keep their levels. Another limit begins empty.
//
// NewSharedBucket does no I/O. A nil store is [ErrInvalid], because a bucket in memory would give
// each of N processes the whole quota. An [InFlight] counts the calls of all processes. It may be
// the only limit: NewSharedBucket(store, "erp", InFlight(50)). With other limits a call takes a
// slot first, and then its cost. If InFlight is the only limit, a call with a slot learns of
// another process's hold within 25 ms. If a request takes longer, it is the time of that, up to 1
// s.
func NewSharedBucket(s store.Store, key string, limits ...Limit) (*Bucket, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: nil Store of %s", ErrInvalid, spec.Quote(key))
	}
	own, err := checkLimits(nil, key, limits, true)
	if err != nil {
		return nil, err
	}
	b := new(Bucket)
	b.core.Init(key, own, s, "")
	return b, nil
}

// Must returns the bucket, and panics if there is an error: for buckets that
// are made when a program starts.
func Must(b *Bucket, err error) *Bucket {
	if err != nil {
		panic(err)
	}
	return b
}

// Key returns the key that the bucket was made with.
func (b *Bucket) Key() string {
	if b == nil {
		return ""
	}
	return b.core.Name
}

// Acquire admits a call of this cost if it fits under every limit now, and charges it. Otherwise
// nothing is charged. The error is a [*ThrottledError] with the time to retry, or a [*CostError] if
// a retry cannot help. It is ctx's own if ctx has ended, or ends before the store replies: what
// that request may have charged leaks. It is a [*StoreError] if the store failed, or replied too
// late. If a reply is more than 100 ms later than normal, Acquire returns the cost and asks again,
// at least once, and until a second has passed. If the store cannot return the cost, it stays
// charged, once, until it leaks. A call leaves when the reply arrives, later than its time in the
// store by the latency of the reply. So processes at different distances exceed a leaky limit by up
// to the longest latency times LeakRate.
//
// With a window in a store, Acquire books each call ahead by the latency of a reply, as a queue
// does, and waits until then. A reply that is 5 ms later than that is too late. The first call may
// take two round trips more, which measure the latency. Behind the call of a process that is
// farther away, a call waits for up to 200 ms instead of being refused.
func (b *Bucket) Acquire(ctx context.Context, c Cost) (p Permit, err error) {
	if decided, err := b.decide(ctx, &c, &p); decided {
		return p, err
	}
	err = b.acquire(ctx, &c, &p)
	return p, err
}

// decide is the part of Acquire without a lock and a request. It reports whether it has decided.
func (b *Bucket) decide(ctx context.Context, c *Cost, p *Permit) (decided bool, err error) {
	if err := b.ready(ctx); err != nil {
		return true, err
	}
	if b.core.Word.Used() && reports.Positive(c.numbers()) {
		// The clock comes first, so that little time is left between looking at the bucket and
		// changing it, in which another processor could take its cache line.
		wait, ok, known := b.core.Word.Take(c.numbers(), int64(now()), &p.in.Fill)
		if ok {
			if p.in.Core = &b.core; known {
				p.in.Flags = core.Known
			}
			return true, nil
		}
		if wait > 0 {
			return true, &ThrottledError{Key: b.core.Name, Limit: b.core.WordLabel(), RetryAfter: wait}
		}
	}
	return false, nil
}

// acquire is Acquire for a call that the word cannot decide.
func (b *Bucket) acquire(ctx context.Context, c *Cost, p *Permit) error {
	if !c.valid() {
		return &CostError{Key: b.core.Name, Cost: *c, Err: ErrInvalid}
	}
	var t store.Taken
	f, decided := b.core.TakeHere(c.numbers(), &p.in, &t)
	switch {
	case !decided:
		return b.acquireStep(ctx, c, p)
	case !t.Booked:
		return b.throttled(f, t.Wait, t.Rem, t.Why, t.Limit)
	}
	return nil
}

// acquireStep is acquire by a step.
func (b *Bucket) acquireStep(ctx context.Context, c *Cost, p *Permit) (err error) {
	if c.charged() == (Cost{}) && b.core.Slots().Most() == 0 {
		p.in.Call, err = b.core.AcquireFree(ctx, c.numbers())
	} else {
		p.in.Call, err = b.core.Acquire(ctx, c.numbers(), b.inJob(ctx))
	}
	return b.failure(err)
}

// withinKey is the key of a context with which a job's further requests are acquired. Its value is
// the bucket's core.
type withinKey struct{}

// inJob reports whether ctx is that of a job that is in flight, so that its requests are not
// counted.
func (b *Bucket) inJob(ctx context.Context) bool {
	if b.core.Slots().Most() == 0 {
		return false
	}
	within, _ := ctx.Value(withinKey{}).(*core.Core)
	return within == &b.core
}

// Fillup adds any finite cost to the level, at most up to the capacity of each limit, and never
// below what is booked. Acquire enforces a limit; Fillup counts, for spending, error rates or
// alerts. State.Full is true in each reply to a fill that ends at the capacity. A leaky limit has
// leaked a moment later; a window or a calendar quota stays full. To raise an alarm once in a
// fleet, let a bucket of Monthly(1, zone) admit it. The State is that of the limit nearest its
// capacity. Fillup does not count calls in flight.
//
// A bucket in memory begins empty, so a restarted program has a fresh capacity. To begin full,
// fill it up to its capacities first. A store keeps levels through restarts.
func (b *Bucket) Fillup(ctx context.Context, c Cost) (State, error) {
	if err := b.ready(ctx); err != nil {
		return State{}, err
	}
	if !c.valid() {
		return State{}, &CostError{Key: b.core.Name, Cost: c, Err: ErrInvalid}
	}
	costs := [1]reports.Numbers{c}
	var r core.Reply
	if err := b.do(ctx, "fillup", &core.Step{Step: key.Step{Op: store.Op{Action: store.Meter, Slots: true}, Calls: costs[:]}}, &r); err != nil {
		return State{}, err
	}
	return nearest(statesOf(&r)), nil
}

// AbleToAccept reports whether Acquire would admit a call of this cost now, and changes nothing. By
// the time of the Acquire another caller may have been faster. Its errors are those of Acquire
// except ThrottledError.
func (b *Bucket) AbleToAccept(ctx context.Context, c Cost) (bool, error) {
	e, err := b.Explain(ctx, c)
	return err == nil && e.Err == nil && e.Because == "", cmp.Or(err, e.Err)
}

// Hold admits no call for d from now on, as an API demands that asks for a pause. A hold that ends
// before one in force changes nothing. Resume ends it early. If d is zero or less, the error is
// [ErrInvalid].
//
// After a hold the API may count whatever it has counted before. So the limit that drains in the
// shortest time is full except for one call, and calls leave at its rate from then on. If the only
// limit is a long one, that takes long. Reservations move by d. A limit made by [Window] frees
// units during the hold: in its bucket reservations later than a second after the hold are void,
// and a queue books them again. An operator who only wants to stop calls uses [Bucket.Pause].
func (b *Bucket) Hold(ctx context.Context, d time.Duration) error {
	return b.stop(ctx, store.Held, "hold", d)
}

// Pause stops all calls for d from now on, as an operator wants it. The limits continue to leak,
// unlike in a [Bucket.Hold]: after the pause calls leave as if none had come meanwhile. A
// reservation in the pause is late afterwards, and is replaced. A pause that ends before a hold in
// force changes nothing. Resume ends it early. If d is zero or less, the error is [ErrInvalid].
func (b *Bucket) Pause(ctx context.Context, d time.Duration) error {
	return b.stop(ctx, store.Paused, "pause", d)
}

// Delay moves all reservations by d, and stops calls until then. Schedulers use it if their jobs
// run later than reserved. Unlike a [Bucket.Hold] it leaves the capacity as it is.
func (b *Bucket) Delay(ctx context.Context, d time.Duration) error {
	return b.stop(ctx, store.Delayed, "delay", d)
}

// stop is Hold, Pause and Delay.
func (b *Bucket) stop(ctx context.Context, kind store.ReportKind, name string, d time.Duration) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	if d <= 0 {
		return fmt.Errorf("%w: %s of %v for %s", ErrInvalid, name, d, spec.Quote(b.core.Name))
	}
	told := [1]reports.Report{{Report: store.Report{Kind: kind, Wait: d}}}
	return b.do(ctx, name, &core.Step{Step: key.Step{Told: told[:]}}, new(core.Reply))
}

// Resume ends a hold and a slow-down immediately, for operators. Reservations are void, and waiting
// calls book again. What was reserved within the next second still counts: other processes let it
// leave until a reply reports the Resume. Levels stay, except in a bucket whose stored data was
// corrupt: that keeps only what calls have taken since.
func (b *Bucket) Resume(ctx context.Context) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	return b.do(ctx, "resume", &core.Step{Step: key.Step{Op: store.Op{Action: store.Resume}}}, new(core.Reply))
}

// SetLimits replaces the limits in force, for all processes that share the bucket. They hold
// through restarts, until the program's own limits change: then those of the new release count.
// Without arguments SetLimits restores the bucket's own; for a bucket in this process that is an
// error. Limits that are in force already change nothing, so a program may set what it reads as
// often as it reads it. Limits without a Version take that in force. A lower Version changes
// nothing.
//
// A limit that stays keeps its level, in units; a new one begins empty; nothing refills. A limit
// stays if Unit, Name and kind are the same, and without a Name its window, or its period and zone.
// It also stays if it is the only one of its unit and kind without a Name, before and after.
// Calls that are booked for the next second leave at their times, however often limits are set.
// Later reservations are void, and their calls are booked again by the new limits.
//
// In a shared bucket that has an [InFlight], limits without one leave it as it is. A shared bucket
// must be made with one.
//
// Other processes learn of the change with their next reply, and of an InFlight within a sixth of
// its lease. A process that remembers a refusal learns of it within a second, so a caller with a
// long RetryAfter should look again now and then.
func (b *Bucket) SetLimits(ctx context.Context, limits ...Limit) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	shared := b.Shared()
	var own []spec.Limit
	if len(limits) > 0 || !shared {
		var err error
		if own, err = checkLimits(nil, b.core.Name, limits, shared); err != nil {
			return err
		}
	}
	if !shared && slices.Equal(own, b.core.Given()) {
		return nil
	}
	h, inFlight := b.core.Slots().Holder(), spec.Slots(own)
	switch {
	case !shared || h == nil && inFlight == nil:
	case h == nil:
		return &LimitError{Key: b.core.Name, Limit: limitOf(spec.OfSlots(inFlight)), Reason: "a shared bucket that was made without an InFlight cannot have one"}
	case len(own) == 0 || inFlight != nil:
		if err := h.Set(ctx, inFlight); err != nil {
			return b.failure(err)
		}
	}
	law := spec.Law(own)
	if len(own) > 0 {
		law = key.NewLimits(law).Law
	}
	return b.do(ctx, "set limits", &core.Step{Step: key.Step{Op: store.Op{Action: store.Replace}, Set: law, With: inFlight}}, new(core.Reply))
}

// Limits returns the limits in force, as far as this process knows: those of the last reply, with
// an [InFlight] last. It makes no request.
func (b *Bucket) Limits() []Limit {
	if b.isZero() {
		return nil
	}
	return limitsOf(b.core.Given())
}

// State returns the state of the limit nearest its capacity, and changes nothing.
func (b *Bucket) State(ctx context.Context) (State, error) {
	if err := b.ready(ctx); err != nil {
		return State{}, err
	}
	if word, here := b.core.Word.Load(); here && b.core.Observed() == nil { // an observer must learn of it
		n := b.core.OfWord(word, now())
		return nearestOf(&n), nil
	}
	all, err := b.States(ctx)
	if err != nil {
		return State{}, err
	}
	return nearest(all), nil
}

// States returns the state of each limit, in the order of the limits with an [InFlight] last, and
// changes nothing.
func (b *Bucket) States(ctx context.Context) ([]State, error) {
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	var r core.Reply
	if err := b.core.Look(ctx, "state", &core.Step{Step: key.Step{Op: store.Op{Slots: true}}}, &r); err != nil {
		return nil, b.failure(err)
	}
	return statesOf(&r), nil
}

// Idle reports whether forgetting the bucket would lose nothing. A [Keyed] asks it before it drops
// a bucket, or a queue around one. A bucket is idle if it is empty and at full speed, its calls
// have ended, its limits are those of its making, and its [Bucket.Reservations] are idle. If an
// Adaptive limit was halved, the bucket is idle an hour later. A bucket in a shared store is always
// idle: its state is in the store. A bucket with limiters of several keys of a Keyed is always
// idle, too: the Keyed keeps one of them until the bucket is idle by itself.
func (b *Bucket) Idle() bool { return b.isZero() || b.core.Keys.Load() > 1 || b.core.Idle() }

// Observe calls f with each change of the bucket's state from now on, beginning with a hold or a
// slow-down that is in force. stop ends it without waiting: f may be running then, or be called
// once more. Observe ignores a nil f.
//
// Changes are found by the operations on the bucket, which has no goroutine. So the end of a hold,
// and a change by another process, is reported at the next operation, such as [Bucket.State]. A
// change that begins and ends between two operations is lost.
//
// f is called in a goroutine of its own, with one change after the other, and holds no
// call up. It may use the bucket. Changes that come while it runs wait for it. If it
// panics, the program ends.
func (b *Bucket) Observe(f func(Event)) (stop func()) {
	if f == nil || b.isZero() {
		return func() {}
	}
	return b.core.Observe(func(c changes.Change) {
		f(Event{Kind: c.Kind, Hold: c.Hold, Reason: reasonOf(c.Why), Speed: c.Speed, Calls: c.Calls, Late: c.Late, Limit: c.Limit, UsedUpIn: c.UsedUpIn, Before: c.Before, Limits: c.Limits})
	})
}

// do carries a step out.
func (b *Bucket) do(ctx context.Context, name string, s *core.Step, r *core.Reply) error {
	return b.failure(b.core.Do(ctx, name, s, r))
}

// ready is what every method asks first.
func (b *Bucket) ready(ctx context.Context) error {
	if b.isZero() {
		return errNilBucket
	}
	return ctx.Err()
}

// isZero reports whether b is nil, or zero.
func (b *Bucket) isZero() bool { return b == nil || b.core.Word.Zero() }

var errNilBucket = fmt.Errorf("%w: a Bucket that NewBucket has not made", ErrInvalid)
