package outbound

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
	"unique"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// engine is a bucket without its verbs: what keeps its state, and carries steps out. There
// are three: the cell, the localState, and the sharedState.
type engine struct {
	cell  // see there why it comes first, and the key next to it
	key   string
	slow  atomic.Pointer[slowPath] // nil: the cell has done for all calls until now
	born  time.Duration
	rate  float64              // of the first limit
	limit unique.Handle[Limit] // the only one, where the cell has it
}

// slowPath is what an engine needs beyond its cell.
type slowPath struct {
	common
	local  localState
	shared *sharedState   // nil: the state is in local
	random func() float64 // of 0 to 1, for what is to differ from worker to worker
}

// init sets the engine up for these limits, in this process or, if it is not nil, in store.
func (e *engine) init(key string, limits []Limit, store leak.Store) {
	first := &limits[0]
	e.key, e.born, e.capacity, e.rate = key, now(), first.Capacity, first.LeakRate
	e.info.Store(uint32(first.Unit))
	e.word.Store(busy)
	if len(limits) == 1 && store == nil && e.start(first, e.born) {
		e.limit = unique.Make(*first)
		return
	}
	p := e.newSlowPath(limits)
	if store != nil {
		p.shared = &sharedState{store, &p.force.Load().limitSet}
	}
	e.slow.Store(p)
}

func (e *engine) newSlowPath(limits []Limit) *slowPath {
	f := &inForce{limitSet: newLimitSet(limits)}
	p := &slowPath{random: rand.Float64}
	p.force.Store(f)
	p.slots.limit.Store(newAtOnce(limits))
	p.waiting.init()
	p.local.init(e.born, f.law)
	return p
}

// slowPath returns what the engine has beyond its cell, and makes it if there is none yet.
func (e *engine) slowPath() *slowPath {
	if p := e.slow.Load(); p != nil {
		return p
	}
	e.slow.CompareAndSwap(nil, e.newSlowPath([]Limit{e.limit.Value()}))
	return e.slow.Load()
}

// remote reports whether the state is in a store.
func (e *engine) remote() bool {
	p := e.slow.Load()
	return p != nil && p.shared != nil
}

// slots returns the places among the calls at once.
func (e *engine) slots() *slots {
	if p := e.slow.Load(); p != nil {
		return &p.slots
	}
	return &anyNumber
}

// inForce returns the limits in force, as far as is known here.
func (e *engine) inForce() *inForce {
	if p := e.slow.Load(); p != nil {
		return p.force.Load()
	}
	return &inForce{limitSet: newLimitSet([]Limit{e.limit.Value()})}
}

// given returns the limits in force as callers have given them, with an AtOnce.
func (e *engine) given() []Limit {
	return e.slots().limit.Load().among(e.inForce().list())
}

// each calls f with the unit, the capacity and the rate of each limit in force, as far as is
// known here.
func (e *engine) each(f func(unit int, capacity, rate float64)) {
	p := e.slow.Load()
	if p == nil {
		f(e.unitOf(), e.capacity, e.rate)
		return
	}
	for _, l := range p.force.Load().law {
		f(l.Unit, l.Capacity, l.Rate)
	}
}

// check returns why a call of this cost can never go under these limits.
func (e *engine) check(limits *limitSet, c *Cost) error {
	if bad := limits.check(c, !e.remote() && e.slots().most() > 0); bad != nil {
		bad.Key = e.key
		return bad
	}
	return nil
}

// do carries a step out where the state is.
func (e *engine) do(ctx context.Context, name string, s *step, r *reply) error {
	p := e.slowPath()
	// Settles do not ride on an operation that a caller's ctx may end, nor on one that a
	// store may refuse.
	settles := p.shared == nil || s.waits || ctx.Done() == nil && s.action < leak.Resume
	reports, reported := p.waiting.piggyback(settles)
	if len(reports) > 0 {
		s.reports = append(reports, s.reports...)
	}
	t := trips.Get().(*trip)
	if p.shared == nil {
		p.local.update(&e.cell, &p.common, s, t, r)
	} else if err := p.shared.update(ctx, e.key, &p.common, s, t, r); err != nil {
		t.done()
		p.waiting.requeue(s.reports, reported)
		if err == ctx.Err() { // it is no fault of the store's
			return err
		}
		return &StoreError{Op: name, Key: e.key, Err: err}
	} else if p.waiting.hasFailed.Load() {
		go e.resend()
	}
	t.note()
	t.done()
	if s.action == leak.Replace || s.action == leak.Resume || len(s.reports) > 0 {
		p.waiting.changed()
	}
	p.watches.announce(r)
	return nil
}

// resend sends reports whose trips have failed, now that one has gone well: retries during
// an outage mostly fail, and one whose reply is lost charges twice.
func (e *engine) resend() {
	if reports := e.slowPath().waiting.takeFailed(); len(reports) > 0 {
		_ = e.do(context.Background(), "settle", &step{reports: reports}, new(reply))
	}
}

// peek tells of the state and changes nothing. It makes no slowPath.
func (e *engine) peek(ctx context.Context, name string, r *reply) error {
	word := e.word.Load()
	if e.slow.Load() != nil || word == busy {
		return e.do(ctx, name, &step{}, r)
	}
	*r = reply{Reply: leak.Reply{Limit: -1, State: leak.New(e.born)}, force: e.inForce()}
	e.read(&r.State, r.force.law, word, e.seen.Load(), now())
	return nil
}

// idle reports whether forgetting the state would lose nothing.
func (e *engine) idle() bool {
	p := e.slow.Load()
	switch {
	case p == nil:
		return e.cell.idle(now())
	case p.shared != nil:
		return true
	case !p.slots.idle() || p.local.changed():
		return false
	}
	var r reply
	t := trips.Get().(*trip)
	p.local.update(&e.cell, &p.common, &step{}, t, &r)
	t.done()
	return r.Expire <= 0
}

// book carries a step out and says why the first of its costs was refused.
func (e *engine) book(ctx context.Context, s *step, r *reply) error {
	if len(s.costs) > 0 && !s.costs[0].valid() {
		return &CostError{Key: e.key, Cost: s.costs[0], Err: ErrInvalidCost}
	}
	if err := e.do(ctx, s.action.String(), s, r); err != nil || len(r.Charges) > 0 {
		return err
	}
	switch {
	case r.noSlot: // nobody has looked yet whether it can ever go
		if err := e.check(&r.force.limitSet, &s.costs[0]); err != nil {
			return err
		}
	case r.Refused:
	case r.bad != nil:
		r.bad.Key = e.key
		return r.bad
	default:
		return nil
	}
	refused := &ThrottledError{Key: e.key, RetryAfter: r.Wait, Held: r.State.Rem > 0}
	if refused.Held {
		refused.Reason = Reason(r.State.Why)
	}
	if r.noSlot {
		e.slots().crowded(refused)
	} else if r.Limit >= 0 {
		refused.Limit = r.force.law[r.Limit].Name
	}
	return refused
}

// charge returns what a call has taken of the cell as a charge of the law.
func (e *engine) charge(f *fill) *leak.Charge {
	born, epoch := e.slowPath().local.life(f.place) // of a life that is over nothing comes back
	c := &leak.Charge{Born: born, Epoch: epoch}
	c.N[0] = f.units
	c.Y[0] = float64(f.word-f.place) / float64(e.unit)
	c.Place = time.Duration(f.place) - born
	c.Before = time.Duration(f.before) - born
	c.Free = later(c.Place, (&leak.Limit{Rate: e.rate}).Above(f.units, 0))
	return c
}

// settle sends a Settled, and returns whether the state has it already.
func (e *engine) settle(r report) bool {
	if e.slowPath().waiting.postpone(r) {
		return false
	}
	e.report(r)
	return true
}

// stagger is the largest part by which a doubled hold of a bucket that nobody shares is
// longer, by chance. Workers that were refused together come back one after the other
// then, and not together, to be refused again.
const stagger = 0.25

// report sends one report by itself, and returns whether it has held the bucket, or for
// longer: the hold then ends after r.Wait, and no later, and did not end there before.
// A report that fails and would give units back is lost, which costs room.
func (e *engine) report(r report) (held bool) {
	if p := e.slowPath(); r.Kind == leak.Refused && p.shared == nil {
		r.Stagger = stagger * p.random()
	}
	reports := [1]report{r}
	var result reply
	if err := e.do(context.Background(), "report", &step{reports: reports[:]}, &result); err != nil {
		return false
	}
	rem := result.State.Rem
	return result.extended && rem >= r.Wait-moved && rem <= later(r.Wait, moved)
}

// succeededAt notes that a call has succeeded for which the word was charged at time t.
func (e *engine) succeededAt(t int64) {
	if p := e.slow.Load(); p != nil {
		p.local.succeed(&e.cell, t)
	} else {
		e.info.Or(good)
	}
}

// succeeded notes that a call which knew of epoch has succeeded.
func (e *engine) succeeded(epoch int64) {
	p := e.slow.Load()
	if p == nil { // it cost nothing: as a call of the cell
		e.succeededAt(int64(now()))
	} else if p.waiting.succeeded(epoch) {
		_ = e.do(context.Background(), "report", &step{}, new(reply))
	}
}
