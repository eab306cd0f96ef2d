package watch

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const (
	// patience is how long a look waits for a store.
	patience = 800 * time.Millisecond
	// fresh is how old the state of a shared bucket may be without being asked for again. Several
	// people may look at the same page.
	fresh = 900 * time.Millisecond
	// forgotten is after how long the state of a bucket that is not shown any more is dropped.
	forgotten = time.Minute
)

var (
	errBroken = errors.New("panic in Explain")
	errLate   = errors.New("no answer within " + patience.String())
)

// cached is what was last known of a limiter.
type cached struct {
	turn chan struct{} // full during a request to the store, protects what follows; nil for a single look
	e    *outbound.Explanation
	err  error         // of the last request
	at   time.Duration // when that ended
	used time.Duration // when it was last shown; the Board's lock protects it
}

// explain returns what is known of a limiter, and asks again for what is old. e is nil if nothing
// is known. err says why there is nothing newer.
func (c *cached) explain(ctx context.Context, x explainer, cost outbound.Cost) (e *outbound.Explanation, err error) {
	if c.turn != nil {
		c.turn <- struct{}{}
		defer func() { <-c.turn }()
	}
	if c.at > 0 && now()-c.at < fresh {
		return c.e, c.err
	}
	defer func() {
		_ = recover() // a look ends no program
		c.at = now()
		e, err = c.e, c.err
	}()
	c.err = errBroken
	is, err := x.Explain(ctx, cost)
	switch c.err = err; {
	case err == nil:
		c.e = &is
	case ctx.Err() != nil:
		c.err = context.Cause(ctx)
	}
	return // as set above
}

// cache returns what is known of the limiter of a row, whose bucket is shared. Limiters of several
// names may be around one bucket, with different waiting calls and costs.
func (b *Board) cache(of *shown, bucket *outbound.Bucket) *cached {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := now()
	maps.DeleteFunc(of.states, func(_ *outbound.Bucket, c *cached) bool { return at-c.used > forgotten })
	c := of.states[bucket]
	if c == nil {
		c = &cached{turn: make(chan struct{}, 1)}
		of.states[bucket] = c
	}
	c.used = at
	return c
}

// fill fills in the states of rows, those of shared buckets at the same time.
func (b *Board) fill(ctx context.Context, rows []*row) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), patience, errLate)
	defer cancel()
	var all sync.WaitGroup
	for _, r := range rows {
		in := inner(r.limiter)
		bucket := bucketIn(in)
		if r.Bucket = bucket != nil; bucket == nil {
			continue
		}
		if q, ok := in.(hasStats); ok {
			s := q.Stats()
			r.Queue = &s
		}
		x, ok := in.(explainer)
		if !ok {
			x = bucket
		}
		c := new(cached)
		if r.Shared = bucket.Shared(); r.Shared {
			c = b.cache(r.shown, bucket)
		}
		ask := func() {
			e, err := c.explain(ctx, x, r.shown.meter.usual())
			r.explained(e, err, bucket.Key())
		}
		if r.Shared {
			all.Go(ask)
		} else {
			ask()
		}
	}
	all.Wait()
}

// explained fills in what a bucket has explained, with the row's name instead of its key.
func (r *row) explained(of *outbound.Explanation, err error, key string) {
	name := r.Name
	if r.Label != "" {
		name = strings.TrimSpace(name + " " + r.Label)
	}
	if err != nil {
		r.Err = cmp.Or(named(err, key, name), "an error")
	}
	if of == nil {
		return
	}
	e := *of
	if e.Key = name; e.Err != nil {
		e.Err = errors.New(named(e.Err, key, name))
	}
	r.Explain = &e
	for i := range e.States {
		s := &e.States[i]
		r.HeldFor, r.Speed, r.Reason = s.HeldFor, s.Speed, s.Reason
		l := Limit{Name: s.Label(), Unit: s.Limit.Unit, Level: s.Level, Capacity: s.Limit.Capacity, LeakRate: s.Limit.LeakRate,
			NextIn: s.NextIn, EmptyIn: s.EmptyIn, Pace: s.Pace, UsedUpIn: s.UsedUpIn, InProgress: s.InProgress, Oldest: s.Oldest, Where: s.Where(), Headroom: s.Headroom}
		l.InFlight = isInFlight(s.Limit)
		// The meter counts the calls of all keys, so it reports nothing of one.
		if n, window := s.Limit.Each(); r.Label == "" && window > 0 && window <= time.Minute && s.Limit.Capacity == 1 {
			l.Of, l.Window, l.Used = n, window, min(n, r.shown.meter.used(now(), window, l.Unit))
		}
		r.Limits = append(r.Limits, l)
	}
	if err != nil { // the hold goes on meanwhile
		r.HeldFor = max(0, r.HeldFor-time.Since(e.AsOf))
	}
}

// isInFlight reports whether a limit is an [outbound.InFlight].
func isInFlight(l outbound.Limit) bool {
	n, _ := l.Each()
	l.Name, l.Unit = "", 0
	return n == 0 && l.LeakRate == 0 && strings.Contains(l.String(), " in flight")
}

// isQuota reports whether a limit is a window or counts by the calendar.
func isQuota(l outbound.Limit) bool {
	n, window := l.Each()
	l.Name, l.Unit, l.Version = "", 0, 0
	return l.LeakRate == 0 && !isInFlight(l) || n > 0 && (l == outbound.Window(n, window) || l == outbound.FixedWindow(n, window))
}

// named is the text of an error with a name instead of the bucket's key, which may be a secret. A
// key below four bytes is none.
func named(err error, key, name string) string {
	text := err.Error()
	var store *outbound.StoreError
	if errors.As(err, &store) {
		text = store.Err.Error()
	}
	if len(key) < 4 {
		return text
	}
	quoted := func(s string) string { return strings.Trim(strconv.Quote(s), `"`) }
	return strings.NewReplacer(key, name, quoted(key), name, quoted(key[:min(len(key), 64)]), name).Replace(text)
}
