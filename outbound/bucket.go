package outbound

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unique"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Bucket paces calls by one to eight limits in up to four units. A call takes
// its cost from all of them or from none. Calls that have no room are refused
// at once, with the time to come back ([ThrottledError]); a queue around the
// bucket waits instead.
//
// The order of booking is the order of departure: where a queue has booked a place
// for a call that waits for one limit, no other call goes before it, also none that
// this limit does not count. It is refused until then, though State may say of its
// own limits that all remains. Calls that are not to wait for each other, such as
// one report an hour and ten rows a second, need two buckets.
//
// A Bucket is safe for concurrent use. A decision in memory takes some ten
// nanoseconds for one limit and a few hundred for several; it does not
// allocate with one limit of which nobody waits. A bucket has no goroutine and
// needs no Close. Of a nil or a zero Bucket every call is [ErrNil].
type Bucket struct {
	// What every call looks at comes first: with very many buckets most of a
	// decision is waiting for them to come into the cache.
	word     atomic.Int64  // when the bucket is empty, in ns of this process; or busy: see fast.go
	seen     atomic.Int64  // when the last call was admitted by the word, to the millisecond
	unit     int64         // ns that a unit takes to leak; 0: no fast path
	brim     int64         // ns that a full bucket takes to leak
	capacity float64       // of the first limit, in line: a bucket with one limit costs 96 bytes
	pins     atomic.Int32  // permits that a Keyed has out
	info     atomic.Uint32 // the unit of the first limit, and good
	key      string
	slow     atomic.Pointer[ledger]
	born     time.Duration
	rate     float64 // of the first limit; 0: AtOnce
	said     unique.Handle[said]
}

// said is what else the first limit says. Most buckets say the same as others, and
// share it; the zero Handle says nothing.
type said struct {
	name   string
	n      float64
	window time.Duration
}

// good tells, in info beside the unit, that a call of the fast path has succeeded.
const good = 1 << 8

func (b *Bucket) unitOf() int { return int(b.info.Load() & (Units - 1)) }

// NewBucket returns a bucket that lives in this process, or a [*LimitError].
// The key names it in errors and events; every call of NewBucket makes a
// bucket of its own, whatever the key.
func NewBucket(key string, limits ...Limit) (*Bucket, error) {
	if len(limits) == 1 { // without a copy to the heap
		if flaw := limits[0].check(); flaw != "" {
			return nil, &LimitError{Key: key, Limit: limits[0], Reason: flaw}
		}
		return newBucket(key, &limits[0]), nil
	}
	own, err := checkLimits(key, limits)
	if err != nil {
		return nil, err
	}
	b := newBucket(key, &own[0])
	b.word.Store(busy)
	b.unit = 0
	b.slow.Store(newLedger(b, own))
	return b, nil
}

func newBucket(key string, l *Limit) *Bucket {
	b := &Bucket{key: key, born: now(), capacity: l.Capacity, rate: l.LeakRate}
	if more := (said{l.Name, l.n, l.window}); more != (said{}) {
		b.said = unique.Make(more)
	}
	b.info.Store(uint32(l.Unit))
	b.start(l)
	return b
}

// NewSharedBucket returns a bucket whose state is in a store, under the key:
// all buckets with the same key there are one. Buckets of one key that were made
// with different limits are each held to their own; of limits with the same Unit
// and Name they share the level. Where a new release adds a limit of a unit that has
// one without a Name, give the new one a Name: without it both are named by what they
// say, the old one is another limit than that of the old workers, and while the release
// rolls out the fleet goes up to twice as fast. So it does where a limit is given
// another Name.
//
// NewSharedBucket does no I/O. A nil store is [ErrNil], because a bucket in memory
// would give each of N workers the whole quota. A limit [AtOnce] is this bucket's own:
// it bounds the calls in progress that this bucket has admitted, and N workers have N
// times as many. A cost that only it would count is [ErrInvalidCost].
func NewSharedBucket(s leak.Store, key string, limits ...Limit) (*Bucket, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: Store of %s", ErrNil, quote(key))
	}
	own, err := checkLimits(key, limits)
	if err != nil {
		return nil, err
	}
	if len(own) == 1 && own[0].atOnce {
		return nil, &LimitError{Key: key, Limit: own[0], Reason: "AtOnce is this worker's own: a shared bucket needs a limit to share beside it"}
	}
	b := newBucket(key, &own[0])
	b.word.Store(busy)
	b.unit = 0
	l := newLedger(b, own)
	l.store, l.made = s, &l.force.Load().limitSet
	b.slow.Store(l)
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
	return b.key
}

// Shared reports whether the bucket's state is in a store, so that whatever is asked
// of it takes a trip: for packages that wait.
func (b *Bucket) Shared() bool {
	if b == nil {
		return false
	}
	l := b.slow.Load()
	return l != nil && l.store != nil
}

// Acquire admits a call of this cost if it fits under every limit now, and
// charges it. If not, nothing is charged and the error is a [*ThrottledError]
// with the time to come back, or a [*CostError] if coming back is no use. The
// error is ctx's own if ctx is done, and a [*StoreError] if the store failed, or
// answered too late four times: an answer from a shared store that comes more than
// 100 ms later than its answers do is given back and asked for again. A call leaves
// when the answer is there, which is later than its time in the store by the answer's
// way back: workers at different distances exceed a limit by up to the longest way
// back times LeakRate. A queue waits for its place instead.
func (b *Bucket) Acquire(ctx context.Context, c Cost) (p Permit, err error) {
	if err := b.ready(ctx); err != nil {
		return p, err
	}
	if c.valid() {
		// The clock first: between looking at the bucket and changing it there
		// is then little time for others to take its cache line away.
		wait, ok := b.take(&c, int64(now()), &p)
		if ok {
			return p, nil
		}
		if wait > 0 {
			return p, &ThrottledError{Key: b.key, Limit: b.limitName(), RetryAfter: wait}
		}
	}
	p.call, err = b.acquire(ctx, c)
	return p, err
}

// acquire is Acquire for whatever is not the fast path.
func (b *Bucket) acquire(ctx context.Context, c Cost) (Call, error) {
	if c == (Cost{}) && b.slots() == 0 {
		return b.acquireNothing(ctx)
	}
	k := &call{bucket: b, cost: [1]Cost{c}, admitted: time.Now()}
	s := step{action: leak.Book, costs: k.cost[:], into: k.charge[:0]}
	for late := 0; ; late++ {
		var r reply
		if err := b.book(ctx, &s, &r); err != nil {
			if late > 0 { // what came too late went back with this trip
				b.ledger().changed()
			}
			return nil, err
		}
		k.charge[0] = r.Charges[0]
		k.hold(&r)
		if k.inTime(&r) {
			return k, nil
		}
		k.admitted = time.Now()
		back := k.charge[0]
		s.back, s.freed = []*leak.Charge{&back}, k.slot.drop()
		if late == mostLate {
			s.costs = nil
			_ = b.do(context.WithoutCancel(ctx), "give back", &s, &r)
			b.ledger().changed()
			return nil, &StoreError{Op: "book", Key: b.key, Err: errLate}
		}
	}
}

// acquireNothing is acquire for a call that costs nothing: it goes, before those who
// are booked as well, unless a hold lasts.
func (b *Bucket) acquireNothing(ctx context.Context) (Call, error) {
	k := &call{bucket: b, admitted: time.Now()}
	var r reply
	if err := b.peek(ctx, "peek", &r); err != nil {
		return nil, err
	}
	if r.State.Rem > 0 {
		return nil, &ThrottledError{Key: b.key, RetryAfter: r.State.Rem, Held: true, Reason: Reason(r.State.Why)}
	}
	// No life knows of this charge: nothing of it comes back.
	k.charge[0] = leak.Charge{Born: never, Epoch: r.State.Epoch, Version: r.Version}
	return k, nil
}

// mostLate is how many answers a call gives back because they come too late, before it
// gives up.
const mostLate = 3

var errLate = errors.New("answers come too late to be used")

// inTime reports whether the answer that admits the call comes in time. One that a
// shared store had to give again, or that was held up, may tell of a place at which
// others have followed long since: together with them the call would be one too many.
func (k *call) inTime(r *reply) bool {
	if r.When.IsZero() {
		return true
	}
	now := time.Now()
	if now.Sub(k.admitted) <= lag {
		return true
	}
	_, late := r.State.Due(k.charge[0].Place)
	return late+now.Sub(clamp(r.Heard, k.admitted, now)) <= lag
}

// Fillup fills by any finite cost, whatever the level: up to the brim of each
// limit and no further, and never below what is booked. It is the meter, for
// spending, error rates or alerts, where Acquire is the gate. State.Full is
// true only in the reply to the fill that reached the brim: a moment later
// some has leaked. The State is that of the limit nearest its brim. A call at
// once is not metered.
func (b *Bucket) Fillup(ctx context.Context, c Cost) (State, error) {
	if err := b.ready(ctx); err != nil {
		return State{}, err
	}
	if !c.valid() {
		return State{}, &CostError{Key: b.key, Cost: c, Err: ErrInvalidCost}
	}
	costs := [1]Cost{c}
	var r reply
	if err := b.do(ctx, "fillup", &step{action: leak.Meter, costs: costs[:]}, &r); err != nil {
		return State{}, err
	}
	return nearest(b.states(&r)), nil
}

// AbleToAccept reports whether Acquire would admit a call of this cost now,
// and changes nothing. By the time of the Acquire another caller may have been
// faster. Its errors are those of Acquire but for ThrottledError.
func (b *Bucket) AbleToAccept(ctx context.Context, c Cost) (bool, error) {
	if err := b.ready(ctx); err != nil {
		return false, err
	}
	if !c.valid() {
		return false, &CostError{Key: b.key, Cost: c, Err: ErrInvalidCost}
	}
	var r reply
	if err := b.peek(ctx, "peek", &r); err != nil {
		return false, err
	}
	clock := b.clock(&r, time.Now())
	if err := clock.check(&c); err != nil {
		return false, err
	}
	if c == (Cost{}) && b.slots() == 0 {
		return r.State.Rem <= 0, nil
	}
	return clock.wait(&Cost{}, &c) == 0 && b.room(), nil
}

// Hold lets no call go for d from now on, however many limits have room, as an
// API that asks for a pause wants it. A hold that ends before one in force
// changes nothing; Resume ends it early. A d that is not above 0 is
// [ErrInvalidDuration].
func (b *Bucket) Hold(ctx context.Context, d time.Duration) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	if d <= 0 {
		return fmt.Errorf("%w: hold of %v for %s", ErrInvalidDuration, d, quote(b.key))
	}
	reports := [1]report{{Report: leak.Report{Kind: leak.Held, Wait: d}}}
	return b.do(ctx, "hold", &step{reports: reports[:]}, new(reply))
}

// Resume ends a hold and a slow-down at once: the operator's way out. Places
// that were booked are void, and whoever waits books anew. Nothing refills.
func (b *Bucket) Resume(ctx context.Context) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	return b.do(ctx, "resume", &step{action: leak.Resume}, new(reply))
}

// SetLimits replaces the limits, for all who share the bucket. Limits are
// matched by Unit and Name, and one without a Name first by what it says, such as "10
// per 1s", with those that this bucket knows to be in force: the level of one that
// stays, stays, in units; a new one starts empty; nothing refills. Calls that are booked
// for the next second go at their places, and nobody overtakes them; places further
// away are void, and whoever waits books anew, by the new limits. Limits that are in
// force already change nothing: a program may set what it reads as often as it reads
// it. In a shared store the limits that are set win over those that any bucket was made
// with, until SetLimits with none, which makes the buckets' own count again; a bucket in
// this process cannot have none.
func (b *Bucket) SetLimits(ctx context.Context, limits ...Limit) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	shared := b.Shared()
	var own []Limit
	if len(limits) > 0 || !shared {
		var err error
		if own, err = checkLimits(b.key, limits); err != nil {
			return err
		}
	}
	if shared {
		if err := noSlots(b.key, own); err != nil {
			return err
		}
	}
	if !shared {
		if l := b.slow.Load(); l != nil {
			inherit(own, l.force.Load().own)
		} else {
			inherit(own, b.first())
		}
		if b.has(own) {
			return nil
		}
	}
	return b.do(ctx, "set limits", &step{action: leak.Replace, limits: own}, new(reply))
}

// ready is what every method asks first.
func (b *Bucket) ready(ctx context.Context) error {
	if b.unmade() {
		return errNilBucket
	}
	return ctx.Err()
}

// unmade reports whether b is nil, or zero: no limit has a capacity of 0.
func (b *Bucket) unmade() bool { return b == nil || b.capacity == 0 }

var errNilBucket = fmt.Errorf("%w: a Bucket that NewBucket has not made", ErrNil)
