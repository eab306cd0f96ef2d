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
	"github.com/dripfeed/dripfeed/outbound/ledger"
	"github.com/dripfeed/dripfeed/queue"
)

// Board shows limiters while they work. Its zero value works. It starts no goroutine. Serve the
// page with http.Handle("/debug/dripfeed", board). It is safe for concurrent use. Set its fields
// before first use.
type Board struct {
	// Allow decides whether a request may have an action carried out. It is called for each action,
	// with no lock held, so it can log who did what. The page shows its error. If Allow is nil, the
	// page is read-only.
	Allow func(r *http.Request, a Action) error
	// Hosts are the host names that actions may use, in addition to localhost and IP addresses. They
	// protect from DNS rebinding.
	Hosts []string
	// Ledgers are in the metrics, each under its own Name. The page shows those whose Name was added.
	// If two have the same Name, only the first counts.
	Ledgers []*ledger.Ledger
	// OnCall is called with each call under any name, when Acquire is about to return, by many
	// goroutines at the same time, with the ctx of Acquire. The call waits for it, so it must not
	// block. If it panics, an admitted call returns its cost, and the panic goes on. It is for
	// tracing: what the Board counts needs no OnCall.
	OnCall func(ctx context.Context, c Call)

	mu     sync.Mutex // protects what follows
	began  time.Time
	shown  []*shown // in the order of Add
	stores []*boardStore
	events []Event // the latest last
}

// shown is one name on the board. The Board's lock protects all but its meter.
type shown struct {
	name    string
	meter   meter
	limiter outbound.Limiter             // added last, or nil for the name of a Keyed
	keyed   keys                         // or nil
	times   int                          // that the name was added
	stop    func()                       // stops observing its bucket, or nil
	states  map[*outbound.Bucket]*cached // of shared buckets
}

// Call is a call that has asked a limiter, as Board.OnCall gets it.
type Call struct {
	Name string // as given to Add, as metrics have it
	Cost outbound.Cost
	Wait time.Duration // how long Acquire took
	// Result is what the Board counts the call as: "admitted", "refused", "cancelled" or "failed".
	Result string
	Err    error // why the call was not admitted, or nil
}

// Add counts the calls of a limiter under a name. It shows the state of a bucket, a queue, and a
// limiter around one, such as that of [outbound.Observe]. Use the result in place of l: its permits
// are those of l. An admitted call costs two readings of the clock, a mutex and no allocation. Put
// Add around a queue, and not into one. [outbound.As] finds l in the result, whose method Idle is
// false if l has none.
//
// The name is what metrics, the page and logs show. It comes from the program, never from a user or
// a URL. If a name was added before, its counters go on, and its state is that of the new limiter.
// For limiters of many keys there is [AddKeyed].
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
