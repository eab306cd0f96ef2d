package engine_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// shelf is what a store keeps: a map with a mutex.
type shelf struct {
	mu     sync.Mutex
	keys   map[string]*kept
	booked int // calls
}

// kept is what it keeps of a key: beside the bucket, the last trip of each worker.
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

// errAway is what matches ErrAway.
type errAway struct{ error }

func (errAway) Is(target error) bool { return target == leak.ErrAway }

// errPassed is the answer to a trip that was overtaken by a later one of the same worker.
var errPassed = errors.New("a later trip has been carried out")

func (p *porter) Compose(*engine.Trip)   {}
func (p *porter) Away(cause error) error { return errAway{cause} }
func (p *porter) Take(a *engine.Attempt) engine.Verdict {
	if a.Err != nil {
		return engine.Later
	}
	return engine.Done
}

func (p *porter) Send(_ context.Context, _ string, todo []engine.Attempt) {
	for i := range todo {
		a := &todo[i]
		a.Reply, a.Err = p.carryOut(a.Trip, a.Into)
	}
}

// carryOut carries a trip out unless that has been done.
func (p *porter) carryOut(t *engine.Trip, into []leak.Charge) (leak.Reply, error) {
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
		return last.reply, nil
	}
	op := t.Op
	op.Into = into
	r := op.Apply(&k.Stored, time.Duration(time.Now().UnixNano()))
	if op.Action == leak.Book && len(op.Reports)+len(op.Back)+len(r.Charges) == 0 && !t.Fence {
		return r, nil // a look, which needs no record
	}
	p.booked += len(r.Charges)
	copied := r
	copied.Charges = append([]leak.Charge(nil), r.Charges...)
	k.last[p] = recorded{t.Seq, copied}
	return r, nil
}

// level returns the level of a key's first limit.
func (s *shelf) level(key string) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key].State.Level[0].Level
}
