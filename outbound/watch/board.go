package watch

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Board shows limiters while they work. Its zero value works. It has no goroutine, needs no Close, and
// registers nothing: http.Handle("/debug/dripfeed", board). It is safe for concurrent use. Set its
// fields before first use.
type Board struct {
	// Allow decides whether a request may have an action carried out. It is called for each action,
	// with no lock held, so it can log who did what. The page shows its error. If Allow is nil, no
	// request may act, and the page has no buttons.
	Allow func(r *http.Request, a Action) error
	// Hosts are the names under which actions are taken, in addition to localhost and IP addresses.
	// They protect from DNS rebinding.
	Hosts []string
	// OnCall is called with each call under any name, when Acquire is about to return, by many
	// goroutines at the same time, with the ctx of Acquire. The call waits for it, so it must not
	// block. If it panics, the panic goes on, and a call that was just admitted is given back. It is
	// for tracing: what the Board counts needs no OnCall.
	OnCall func(ctx context.Context, c Call)

	mu     sync.Mutex // protects what follows
	began  time.Time
	shown  []*shown // in the order in which they were added
	stores []*boardStore
	events []Event // the latest last
}

// shown is one name on the board. The Board's lock protects all but its meter.
type shown struct {
	name    string
	meter   meter
	limiter outbound.Limiter             // that was added last; nil: it is a Keyed's name
	keyed   keys                         // nil: it is a limiter
	times   int                          // that the name was added
	stop    func()                       // stops observing its bucket; nil: it has none
	states  map[*outbound.Bucket]*cached // of shared buckets
}

// Call is a call that has asked a limiter, as Board.OnCall gets it.
type Call struct {
	Name string // as given to Add, as metrics have it
	Cost outbound.Cost
	Wait time.Duration // how long Acquire took
	// Result is what the Board counts the call as: "admitted", "refused", "cancelled" or "failed".
	Result string
	Err    error // why the call was not admitted; nil: it was
}

// Add counts the calls of a limiter under a name, and shows its state, if it is a bucket, a queue or
// another limiter around one of these, as [outbound.Observe] makes it. Use the result, which works as
// l does: its permits are those of l, and an admitted call costs two readings of the clock, a mutex
// and no allocation. Put Add around a queue, and not into one. [outbound.As] finds l in the result,
// whose method Idle is false if l has none.
//
// The name is what metrics, the page and logs show. It comes from the program, never from a user or a
// URL. If a name was added before, its counters go on, and its state is that of the new limiter. For
// limiters of many keys there is [AddKeyed].
func (b *Board) Add(name string, l outbound.Limiter) outbound.Limiter {
	if l == nil {
		l = noLimiter{}
	}
	return &counted{limiter: l, meter: &b.show(name, l, nil).meter, board: b, name: clean(name)}
}

// noLimiter is a nil limiter.
type noLimiter struct{}

func (noLimiter) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, fmt.Errorf("%w: nil Limiter of a Board", outbound.ErrInvalid)
}

// show has a name stand for a limiter, or for a Keyed, from now on.
func (b *Board) show(name string, l outbound.Limiter, k keys) *shown {
	bucket := bucketIn(l)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began = cmp.Or(b.began, time.Now())
	i := slices.IndexFunc(b.shown, func(s *shown) bool { return s.name == name })
	if i < 0 {
		i = len(b.shown)
		b.shown = append(b.shown, &shown{name: name, states: make(map[*outbound.Bucket]*cached)})
	}
	s := b.shown[i]
	if s.stop != nil {
		s.stop()
	}
	s.meter.change(&outbound.Event{Kind: outbound.EventReleased}) // a hold of the former bucket is none of the new one
	s.limiter, s.keyed, s.stop = l, k, nil
	s.times++
	if times := s.times; bucket != nil {
		s.stop = bucket.Observe(func(e outbound.Event) { b.note(s, times, &e) })
	}
	return s
}

// What a limiter may be, other than a *outbound.Bucket.
type (
	explainer interface {
		Explain(context.Context, outbound.Cost) (outbound.Explanation, error)
	}
	hasBucket interface{ Bucket() *outbound.Bucket }
	hasStats  interface{ Stats() queue.Stats }
)

// inner returns the limiter in l that reports its state. That of a Scheduler is its queue.
func inner(l outbound.Limiter) outbound.Limiter {
	for {
		switch x := l.(type) {
		case *outbound.Bucket: // most are, and this is quicker
			return l
		case interface{ Queue() *queue.Queue }:
			return x.Queue()
		case explainer, hasBucket:
			return l
		case interface{ Unwrap() outbound.Limiter }:
			l = x.Unwrap()
		default:
			return l
		}
	}
}

// bucketIn returns the bucket whose state is that of a limiter, or nil.
func bucketIn(l outbound.Limiter) *outbound.Bucket {
	switch x := inner(l).(type) {
	case *outbound.Bucket:
		return x
	case hasBucket:
		return x.Bucket()
	}
	return nil
}

// bucketOf returns the bucket of a limiter, or nil.
func (b *Board) bucketOf(name, label string) *outbound.Bucket {
	for _, r := range b.rows() {
		if r.Name == name && r.keyed != nil {
			return bucketIn(r.keyed.find(label))
		} else if r.Name == name && label == "" {
			return bucketIn(r.limiter)
		}
	}
	return nil
}
