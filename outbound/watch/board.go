package watch

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Board shows limiters while they work. Its zero value works. It has no goroutine, needs no Close, and registers
// nothing: http.Handle("/debug/dripfeed", board). It is safe for concurrent use. Set its fields before first use.
type Board struct {
	// Allow decides whether a request may have an action carried out. It is called for each action, with no lock
	// held, so it can log who did what; its error is shown. nil: nobody may act, and the page has no buttons.
	Allow func(r *http.Request, a Action) error
	// Hosts are the names under which actions are taken, beside localhost and IP addresses. They protect from DNS
	// rebinding.
	Hosts []string

	calls atomic.Pointer[[]*func(context.Context, Call)] // who hears of calls; nil: nobody does

	mu     sync.Mutex // protects what follows
	began  time.Time
	shown  []*shown // in the order in which they were added
	stores []*boardStore
	states map[stateOf]*cached // of the limiters with shared buckets that are shown
	events events
}

// stateOf is whose state is remembered. Limiters of several names may be around one bucket, and differ in who waits
// and in what calls cost.
type stateOf struct {
	shown  *shown
	bucket *outbound.Bucket
}

// shown is one name on the board.
type shown struct {
	name    string
	meter   meter
	held    held
	limiter outbound.Limiter // that was added last; nil: it is a Keyed's name
	keyed   keys             // nil: it is a limiter
	times   int              // that the name was added
	late    uint64           // places that the queues have lost which had the name before
	stop    func()           // stops observing its bucket
}

// Call is a call that has asked for room, as the functions given to [Board.OnCall] hear of it.
type Call struct {
	Name string // as given to Add
	Cost outbound.Cost
	Wait time.Duration // how long Acquire took
	Err  error         // why the call was not admitted; nil: it was
}

// Add counts the calls of a limiter under a name, and shows its state, if it is a bucket, a queue or another limiter
// around one of these, as [outbound.Observe] makes it. Use the result, which works as l does: its permits are those of l,
// and an admitted call costs two readings of the clock and no allocation. Put Add around a queue, and not into one.
// [outbound.As] finds l in the result, whose method Idle is false if l has none.
//
// The name is what metrics, the page and logs show. It comes from the program, never from a user or a URL. With a
// name that was added before the same counters go on, and the state is that of the new limiter. For limiters of many
// keys there is [AddKeyed].
func (b *Board) Add(name string, l outbound.Limiter) outbound.Limiter {
	if l == nil {
		l = noLimiter{}
	}
	bucket := bucketIn(l)
	s, times := b.show(name, l, nil)
	if bucket != nil {
		stop := bucket.Observe(func(c outbound.Event) { b.note(s, times, &c) })
		b.mu.Lock()
		if s.times == times {
			s.stop, stop = stop, nil
		}
		b.mu.Unlock()
		if stop != nil { // the name was added again meanwhile
			stop()
		}
	}
	return &counted{limiter: l, meter: &s.meter, board: b, name: name}
}

// noLimiter is a nil limiter.
type noLimiter struct{}

func (noLimiter) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, fmt.Errorf("%w: nil Limiter of a Board", outbound.ErrInvalid)
}

// show has a name stand for a limiter, or for a Keyed, from now on, and returns how often it was added.
func (b *Board) show(name string, l outbound.Limiter, k keys) (s *shown, times int) {
	b.mu.Lock()
	s = b.nameLocked(name)
	late := s.late
	for was := -1; was != s.times; { // another Add may be faster
		was = s.times
		former, before := s.limiter, s.late
		b.mu.Unlock()
		if late = before; former != nil {
			if q, ok := inner(former).(hasStats); ok {
				late += q.Stats().Late
			}
		}
		b.mu.Lock()
	}
	s.limiter, s.keyed, s.late = l, k, late
	s.times++
	times = s.times
	stop := s.stop
	s.stop = nil
	b.mu.Unlock()
	if stop != nil {
		stop()
	}
	s.held.end(now()) // what held the former one says nothing of this one
	return s, times
}

// nameLocked returns what is shown under a name, and makes it if there is nothing.
func (b *Board) nameLocked(name string) *shown {
	b.beginLocked()
	for _, s := range b.shown {
		if s.name == name {
			return s
		}
	}
	s := &shown{name: name}
	b.shown = append(b.shown, s)
	return s
}

func (b *Board) beginLocked() {
	if b.began.IsZero() {
		b.began = time.Now()
	}
}

// names returns what is shown now.
func (b *Board) names() []*shown {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*shown(nil), b.shown...)
}

// current returns what a name stands for now.
func (b *Board) current(s *shown) (outbound.Limiter, keys, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.limiter, s.keyed, s.late
}

// OnCall has f called with each call that has asked for room under any name, when Acquire is about to return. Many
// goroutines call f at the same time, with the ctx of Acquire. The call waits for f, so f must not block. If f panics,
// the panic goes on, and a call that was just admitted is given back. stop ends it. A nil f hears nothing. OnCall is
// for tracing; what the Board itself counts needs no f.
func (b *Board) OnCall(f func(context.Context, Call)) (stop func()) {
	if f == nil {
		return func() {}
	}
	edit := func(change func([]*func(context.Context, Call)) []*func(context.Context, Call)) {
		for {
			old := b.calls.Load()
			var all []*func(context.Context, Call)
			if old != nil {
				all = append(all, *old...)
			}
			next := &all
			if all = change(all); len(all) == 0 {
				next = nil
			}
			if b.calls.CompareAndSwap(old, next) {
				return
			}
		}
	}
	edit(func(all []*func(context.Context, Call)) []*func(context.Context, Call) { return append(all, &f) })
	return func() {
		edit(func(all []*func(context.Context, Call)) (rest []*func(context.Context, Call)) {
			for _, g := range all {
				if g != &f {
					rest = append(rest, g)
				}
			}
			return rest
		})
	}
}

// tell has those who hear of calls hear of one.
func (b *Board) tell(ctx context.Context, name string, c outbound.Cost, wait time.Duration, err error) {
	all := b.calls.Load()
	if all == nil {
		return
	}
	for _, f := range *all {
		(*f)(ctx, Call{Name: name, Cost: c, Wait: wait, Err: err})
	}
}

// What a limiter may be, beside a *outbound.Bucket.
type (
	explainer interface {
		Explain(context.Context, outbound.Cost) (outbound.Explanation, error)
	}
	hasBucket interface{ Bucket() *outbound.Bucket }
	hasQueue  interface{ Queue() *queue.Queue }
	hasStats  interface{ Stats() queue.Stats }
)

// inner returns the limiter that tells the state of l, which may be around it: that of a line is its queue.
func inner(l outbound.Limiter) outbound.Limiter {
	for {
		switch x := l.(type) {
		case *queue.Queue:
			if x == nil {
				return nil
			}
			return l
		case hasQueue:
			if q := x.Queue(); q != nil {
				return q
			}
			return l
		case explainer, hasBucket: // it tells its own
			return l
		case interface{ Unwrap() outbound.Limiter }:
			l = x.Unwrap()
		default:
			return l
		}
	}
}

// bucketIn returns the bucket whose state is that of a limiter; nil: there is none.
func bucketIn(l outbound.Limiter) *outbound.Bucket {
	switch x := inner(l).(type) {
	case *outbound.Bucket:
		return x
	case hasBucket:
		return x.Bucket()
	}
	return nil
}

// bucketOf returns the bucket of a limiter; nil: it has none, or is unknown.
func (b *Board) bucketOf(name, label string) *outbound.Bucket {
	for _, s := range b.names() {
		if s.name != name {
			continue
		}
		switch limiter, keyed, _ := b.current(s); {
		case keyed != nil:
			return bucketIn(keyed.find(label))
		case label == "":
			return bucketIn(limiter)
		}
	}
	return nil
}
