package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const (
	// patience is how long a look waits for a store.
	patience = 800 * time.Millisecond
	// fresh is how old a shared bucket's state may be so that nobody asks for it again. Several people may look at
	// the same page.
	fresh = 900 * time.Millisecond
)

var (
	errSlow   = errors.New("no answer within " + patience.String())
	errGone   = errors.New("nobody has waited for the answer") // the look was broken off
	errBroken = errors.New("it breaks when it is asked")
)

// cached is what was last known of a limiter whose bucket is shared.
type cached struct {
	mu    sync.Mutex
	known bool
	e     outbound.Explanation
	err   error         // of the last trip
	at    time.Duration // when that ended
	trip  chan struct{} // closed when the trip that is under way ends; nil: none is
	used  time.Duration // when it was last shown; the Board's lock protects it
}

// explain returns what is known of a limiter in a store, which may hang, and asks again what is old. err says why
// there is nothing newer.
func (c *cached) explain(ctx context.Context, x explainer, cost outbound.Cost) (e outbound.Explanation, known bool, err error) {
	c.mu.Lock()
	if c.at > 0 && now()-c.at < fresh {
		defer c.mu.Unlock()
		return c.e, c.known, c.err
	}
	trip := c.trip
	if trip == nil {
		trip = make(chan struct{})
		c.trip = trip
		go c.ask(trip, x, cost)
	}
	c.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-trip:
	case <-timer.C:
		err = errSlow
	case <-ctx.Done():
		err = errGone
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = c.err
	}
	return c.e, c.known, err
}

// ask makes the trip. It does not end with the request for which it was begun, because others wait for it too.
func (c *cached) ask(trip chan struct{}, x explainer, cost outbound.Cost) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var (
		e   outbound.Explanation
		err = errBroken
	)
	defer func() {
		_ = recover() // a look ends no program
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.err, c.at, c.trip = err, max(1, now()), nil; err == nil {
			c.e, c.known = e, true
		}
		close(trip)
	}()
	e, err = x.Explain(ctx, cost)
}

// asked reports whether a trip is under way.
func (c *cached) asked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trip != nil
}

// fill fills in the state of a limiter, and of its queue.
func (l *Limiter) fill(ctx context.Context, in outbound.Limiter, c *cached, m *meter) {
	in = inner(in)
	if q, ok := in.(hasStats); ok {
		s := q.Stats()
		l.Queued = true
		l.Waiting, l.Oldest, l.NextIn = s.Waiting, s.Oldest, s.NextIn
		l.Late += s.Late
	}
	x, ok := in.(explainer)
	bucket := bucketIn(in)
	l.Kept = bucket != nil
	if !ok || bucket == nil {
		return
	}
	var (
		e     outbound.Explanation
		known = true
		err   error
		cost  = m.usual()
	)
	if l.Shared = bucket.Shared(); l.Shared {
		e, known, err = c.explain(ctx, x, cost)
	} else {
		e, err = x.Explain(ctx, cost)
		known = err == nil
	}
	name := l.Name
	if l.Label != "" {
		name += " " + l.Label
	}
	if err != nil {
		l.Err = named(err, bucket.Key(), name)
	}
	if l.gone = err == errGone; !known {
		return
	}
	e.Key = name
	var bad *outbound.CostError
	if errors.As(e.Err, &bad) { // it has the bucket's key
		own := *bad
		own.Key = e.Key
		e.Err = &own
	}
	if l.AsOf = e.AsOf; len(e.States) > 0 {
		s := &e.States[0]
		l.HeldFor, l.Speed, l.Reason = s.HeldFor, s.Speed, s.Reason
	}
	if err != nil { // the hold goes on meanwhile
		l.HeldFor = max(0, l.HeldFor-time.Since(e.AsOf))
	}
	l.Explain = &e
	for i := range e.States {
		l.Limits = append(l.Limits, limitOf(&e, i, m, l.Label == ""))
	}
}

// limitOf returns what is shown of a limit. The meter counts the calls of all keys, so it tells nothing of one.
func limitOf(e *outbound.Explanation, i int, m *meter, counted bool) Limit {
	is := &e.States[i]
	l := Limit{Name: is.Label(), Unit: is.Limit.Unit, Level: is.Level, Capacity: is.Limit.Capacity, LeakRate: is.Limit.LeakRate,
		NextIn: is.NextIn, EmptyIn: is.EmptyIn, Binding: e.Limit != "" && e.Limit == is.Label()}
	plain := is.Limit
	plain.Name, plain.Unit = "", 0
	l.InFlight = plain == outbound.InFlight(int(plain.Capacity))
	if n, window := is.Limit.Each(); counted && window > 0 && window <= time.Minute && is.Limit.Capacity == 1 {
		l.Of, l.Window, l.Used = n, window, min(n, m.minute.used(now(), window, is.Limit.Unit))
	}
	return l
}

// shortest is how many bytes a key has at least that is looked for in the text of an error. A shorter one is no secret.
const shortest = 4

// named is the text of an error with a name in the place of the bucket's key, which a store's error may tell.
func named(err error, key, name string) string {
	text := withoutKey(err)
	if len(key) < shortest || key == name {
		return text
	}
	return strings.ReplaceAll(text, key, name)
}

// withoutKey is the text of an error of a store, or of a bad configuration, without the bucket's key, which may be a
// secret. Of other errors it is the type.
func withoutKey(err error) string {
	var store *outbound.StoreError
	var limit *outbound.LimitError
	switch {
	case errors.As(err, &store):
		return store.Op + ": " + store.Err.Error()
	case err == errSlow, err == errGone, err == errBroken:
		return err.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return errSlow.Error()
	case errors.As(err, &limit):
		return "invalid limit: " + limit.Reason
	case errors.Is(err, outbound.ErrInvalid):
		return outbound.ErrInvalid.Error()
	}
	return fmt.Sprintf("%T", err)
}
