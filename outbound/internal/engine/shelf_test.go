package engine_test

import (
	"context"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// shelf is the state of a store: a map with a mutex.
type shelf struct {
	mu     sync.Mutex
	keys   map[string]*kept
	booked int // number of booked calls
}

// kept is the state of one key: the bucket, and the last trip of each worker.
type kept struct {
	leak.Stored
	last map[*porter]recorded
}

type recorded struct {
	seq   int64
	reply leak.Reply
}

// porter is the carrier of one worker to a shelf.
type porter struct{ *shelf }

func newShelf() *shelf { return &shelf{keys: make(map[string]*kept)} }

// worker returns a store on the shelf.
func (s *shelf) worker(c engine.Config) *engine.Engine {
	if c.Carrier == nil {
		c.Carrier = &porter{s}
	}
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	return engine.New(c)
}

// errAway matches leak.ErrAway.
type errAway struct{ error }

func (errAway) Is(target error) bool { return target == leak.ErrAway }

func (p *porter) Compose(*engine.Trip)   {}
func (p *porter) Away(cause error) error { return errAway{cause} }
func (p *porter) Take(a *engine.Attempt) engine.Verdict {
	if a.Err != nil {
		return engine.Later
	}
	return engine.Done
}

func (p *porter) Send(_ context.Context, _ engine.Node, todo []engine.Attempt) {
	for i := range todo {
		a := &todo[i]
		a.Now = time.Duration(time.Now().UnixNano())
		a.Reply, a.Err = p.carryOut(a.Trip, a.Into, a.Now)
	}
}

// carryOut carries a trip out, unless the shelf has carried it out before.
func (p *porter) carryOut(t *engine.Trip, into []leak.Charge, now time.Duration) (leak.Reply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.keys[t.Key.Bucket]
	if k == nil {
		k = &kept{last: make(map[*porter]recorded)}
		p.keys[t.Key.Bucket] = k
	}
	switch last := k.last[p]; {
	case t.Seq < last.seq:
		return leak.Reply{}, errPassed
	case t.Seq == last.seq:
		r := last.reply
		r.Charges = append(into, r.Charges...)
		return r, nil
	}
	op := t.Op
	op.Into = into
	r := op.Apply(&k.Stored, now)
	if op.Action == leak.Book && len(op.Reports)+len(op.Back)+len(r.Charges) == 0 && !t.Fence {
		return r, nil // a look needs no record
	}
	p.booked += len(r.Charges)
	copied := r
	copied.Charges = append([]leak.Charge(nil), r.Charges...)
	k.last[p] = recorded{t.Seq, copied}
	return r, nil
}

// calls returns the number of booked calls.
func (s *shelf) calls() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.booked)
}

// level returns the level of a key's first limit.
func (s *shelf) level(key string) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key].State.Level[0].Level
}
