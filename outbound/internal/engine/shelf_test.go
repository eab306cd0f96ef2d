package engine_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// shelf is the state of a store: a map with a mutex.
type shelf struct {
	mu     sync.Mutex
	keys   map[string]*kept
	booked int  // number of booked calls
	bare   bool // a refusal leaves no record
}

// kept is the state of one key: the bucket, and the last trip of each worker.
type kept struct {
	store.Stored
	last map[*porter]recorded
}

type recorded struct {
	seq   int64
	reply store.Reply
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

// errOlder is the error of a trip that finds older data than it knows.
var errOlder = errors.New("the shelf has lost data")

// errDown matches store.ErrUnavailable.
type errDown struct{ error }

func (errDown) Is(target error) bool { return target == store.ErrUnavailable }

func (p *porter) Compose(*engine.Trip)          {}
func (p *porter) Unavailable(cause error) error { return errDown{cause} }
func (p *porter) Take(a *engine.Attempt) engine.Verdict {
	switch a.Err {
	case nil:
		return engine.Done
	case errOlder:
		return engine.Anew
	}
	return engine.Later
}

func (p *porter) Send(_ context.Context, todo []engine.Attempt) {
	for i := range todo {
		a := &todo[i]
		a.Now = time.Duration(time.Now().UnixNano())
		p.carryOut(a)
	}
}

// carryOut carries a trip out, unless the shelf has carried it out before.
func (p *porter) carryOut(a *engine.Attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.keys[a.Key.Bucket]
	if k == nil {
		k = &kept{last: make(map[*porter]recorded)}
		p.keys[a.Key.Bucket] = k
	}
	was := k.last[p]
	if a.Recorded = was.seq; was.seq > 0 && was.seq < a.Last {
		a.Err = errOlder
		return
	}
	if a.Seq < was.seq {
		a.Err = errPassed
		return
	}
	if a.Seq > was.seq {
		op := a.Op
		op.Into = nil
		r := op.Apply(&k.Stored, a.Now)
		// A refusal leaves a record, because the lines of the tests repeat requests.
		if !r.Changed && !a.Fence && (p.bare || len(op.Costs) == 0) {
			a.Reply = r
			return
		}
		p.booked += len(r.Charges)
		was = recorded{a.Seq, r}
		k.last[p] = was
	}
	a.Reply, a.Keep = was.reply, time.Hour
	a.Reply.Charges = append(a.Into, was.reply.Charges...)
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
	return s.keys[key].State.Level[0]
}
