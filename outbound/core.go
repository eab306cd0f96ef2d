package outbound

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
	"unique"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// core is a bucket without its exported methods. It keeps the bucket's state and carries steps out
// in its cell, in a localState, or in a sharedState.
type core struct {
	cell     // see there why it comes first, and the key next to it
	key      string
	slow     atomic.Pointer[slowPath] // nil while the cell is enough for all calls
	born     time.Duration
	labelled unique.Handle[labelledLimit] // where the cell has the only limit
}

// labelledLimit is a limit and its label. Most buckets have the limit of another bucket, and share
// it.
type labelledLimit struct {
	limit Limit
	label string
}

// lastLabelled is that of the latest bucket with a cell: buckets that are made in sequence mostly
// have the same limit, and share its text.
var lastLabelled atomic.Pointer[unique.Handle[labelledLimit]]

func labelledOf(l *Limit) unique.Handle[labelledLimit] {
	if h := lastLabelled.Load(); h != nil && h.Value().limit == *l {
		return *h
	}
	h := unique.Make(labelledLimit{*l, l.label()})
	lastLabelled.Store(&h)
	return h
}

// slowPath is what a core needs beyond its cell.
type slowPath struct {
	made     limitSet                // what the bucket was made with
	base     uint64                  // its hash
	force    atomic.Pointer[inForce] // the newest that this process knows of
	slots    slots
	outbox   reports.Outbox
	watches  watches
	local    localState
	shared   *sharedState             // nil if the state is in local
	reserved atomic.Pointer[reserved] // what Reservations has made last, or nil
}

// reserved is the bucket of Reservations under the limits of an inForce.
type reserved struct {
	limits *inForce
	bucket *Bucket
}

// init sets the core up for these limits, in this process or, if it is not nil, in a store.
func (b *core) init(key string, limits []Limit, in store.Store) {
	first := &limits[0]
	b.key, b.born, b.capacity = key, now(), first.Capacity
	b.info.Store(uint32(first.Unit))
	b.word.Store(busy)
	if len(limits) == 1 && in == nil && b.start(first, b.born) {
		b.labelled = labelledOf(first)
		return
	}
	p := b.newSlowPath(keyed(limits))
	if in != nil {
		if l := p.slots.limit.Load(); l != nil {
			p.slots.fleet = newHolder(&p.slots, key, l, in, p.outbox.Changed)
		}
		p.shared = &sharedState{store: in, key: storeKey(key)}
		p.force.Store(&inForce{limitSet: p.made})
	}
	b.slow.Store(p)
}

func (b *core) newSlowPath(limits []Limit) *slowPath {
	p := &slowPath{made: newLimitSet(limits)}
	p.base = store.Hash(p.made.law)
	p.force.Store(&inForce{limitSet: p.made, number: firstNumber})
	p.slots.limit.Store(inFlightOf(limits))
	p.slots.cut, p.slots.full = never, never
	p.outbox.Init()
	p.local.init(b.born, &p.made, p.base)
	return p
}

// first returns the limit of the cell.
func (b *core) first() Limit { return b.labelled.Value().limit }

// slowPath returns what the core has beyond its cell, and makes it if there is none yet.
func (b *core) slowPath() *slowPath {
	if p := b.slow.Load(); p != nil {
		return p
	}
	b.slow.CompareAndSwap(nil, b.newSlowPath([]Limit{b.first()}))
	return b.slow.Load()
}

// remote reports whether the state is in a store.
func (b *core) remote() bool {
	p := b.slow.Load()
	return p != nil && p.shared != nil
}

// slots returns the slots of calls in flight.
func (b *core) slots() *slots {
	if p := b.slow.Load(); p != nil {
		return &p.slots
	}
	return &anyNumber
}

// inForce returns the limits in force, as far as is known here.
func (b *core) inForce() *inForce {
	if p := b.slow.Load(); p != nil {
		return p.force.Load()
	}
	return b.ofCell()
}

// ofCell returns the limit of the cell.
func (b *core) ofCell() *inForce {
	first := b.first()
	one := &struct { // in one allocation
		inForce
		law [1]store.Limit
	}{law: [1]store.Limit{first.law()}}
	one.inForce = inForce{limitSet: limitSet{law: one.law[:]}, number: firstNumber}
	return &one.inForce
}

// given returns the limits in force as callers have given them, with an InFlight.
func (b *core) given() []Limit {
	return with(b.inForce().list(), b.slots().limit.Load())
}

// each calls f with the unit, the capacity and the rate of each limit in force, as far as is
// known here.
func (b *core) each(f func(unit int, capacity, rate float64)) {
	p := b.slow.Load()
	if p == nil {
		l := b.first()
		f(l.Unit, l.Capacity, l.LeakRate)
		return
	}
	for _, l := range p.force.Load().counts() {
		f(int(l.Unit), l.Capacity, l.Rate)
	}
}

// do carries a step out where the state is.
func (b *core) do(ctx context.Context, name string, s *step, r *reply) error {
	p := b.slowPath()
	// Settles ride only on operations that neither a caller's ctx nor a refusal can end.
	settles := p.shared == nil || s.waits || ctx.Done() == nil && s.Action < store.Resume
	riding, reported := p.outbox.Ride(settles)
	if len(riding) > 0 {
		s.reports = append(riding, s.reports...)
	}
	t := trips.Get().(*trip)
	err := b.update(ctx, p, s, t, r)
	t.done()
	switch {
	case err != nil:
		p.outbox.Failed(s.reports, reported)
		if err == ctx.Err() { // it is no fault of the store's
			return err
		}
		return &StoreError{Op: name, Key: b.key, Err: err}
	case p.outbox.Recovered(): // during an outage retries mostly fail
		go b.report()
	}
	s.settled()
	if s.Action == store.Replace || s.Action == store.Resume || len(s.reports) > 0 {
		p.outbox.Changed()
	}
	return nil
}

// mostTries is how often a step is tried on a key in a store that does nothing, because of other
// limits or other periods of the calendar. A try in this process takes a microsecond.
const mostTries, mostTriesHere = 8, 1000

var (
	errSilent   = errors.New("the store has neither booked nor refused")
	errStale    = errors.New("the limits change faster than this process can follow")
	errUnsound  = errors.New("the store's reply does not fit to the request")
	errUntimely = errors.New("the store's clock is in no calendar period of the step: check that clock")
)

// update carries a step out by the limits in force, and takes in what the reply says of them.
func (b *core) update(ctx context.Context, p *slowPath, s *step, t *trip, r *reply) (err error) {
	asked := p.slots.reserve(s)
	for tries := 0; ; tries++ {
		f := p.force.Load()
		r.force = f
		t.resolve(b.key, s, f)
		b.prepare(p, s, t, f)
		if err = b.send(ctx, p, s, &t.op, r); err == nil {
			r.force, err = b.follow(ctx, p, f, &t.op, &r.Reply)
		}
		undone := r.Stale || r.Untimely
		outdated := err == nil && !undone && s.outdated(f, r)
		if err == nil && !undone && (r.State.Speed == 0 || len(t.op.Costs) > 0 && t.op.Move == nil && len(r.Charges) == 0 && !r.Refused && s.Action == store.Book) {
			err = errSilent
		}
		if outdated || r.Reported && (err != nil || undone) { // they are not to be sent again
			s.settled()
			s.reports, s.back = nil, nil
			p.outbox.Changed()
		}
		if err != nil || !undone && !outdated {
			break
		}
		if tries == mostTriesHere || tries == mostTries && p.shared != nil {
			if err = errStale; r.Untimely {
				err = errUntimely
			}
			break
		}
	}
	if err != nil {
		r.Reply = store.Reply{}
	} else if p.shared != nil {
		p.outbox.Confirm(&r.State)
	}
	if p.slots.seat(ctx, s, asked, r) {
		p.outbox.Changed()
	}
	if err == nil {
		p.watches.announce(r)
	}
	return err
}

// outdated reports whether a step by the limits of f has to be made again by those in force. They
// may hold a cost that was left out, or that the old ones have rounded.
func (s *step) outdated(f *inForce, r *reply) bool {
	if r.force == f || s.Action > store.Book || len(r.Charges) > 0 || len(s.costs) == 0 {
		return false
	}
	return !store.Equal(r.force.law, f.law)
}

// send has the key carry an Op out, wherever it is.
func (b *core) send(ctx context.Context, p *slowPath, s *step, op *store.Op, r *reply) error {
	if p.shared == nil {
		b.updateHere(p, s, op, r)
		return nil
	}
	r.inFlight = p.slots.limit.Load()
	h := p.slots.fleet
	if h == nil || r.force == nil || !r.force.open {
		return p.shared.update(ctx, op, &r.Reply)
	}
	if h.recall(b, r.force, op, &r.Reply) {
		return nil
	}
	sent := now()
	err := p.shared.update(ctx, op, &r.Reply)
	if err == nil {
		h.remember(sent, &r.Reply)
	}
	return err
}

// prepare fills in what each Op says of the process, and what a Replace puts in force.
func (b *core) prepare(p *slowPath, s *step, t *trip, f *inForce) {
	t.op.Base, t.op.Age = p.base, now()
	if f.calendar != nil {
		unix := calendar.Stamp(time.Now())
		if p.shared != nil {
			unix += time.Duration(p.shared.ahead.Load())
		}
		t.op.Periods = f.calendar.At(unix - store.Slack) // so that a key may be behind
	}
	if s.Action != store.Replace {
		return
	}
	if t.op.Replacement, t.op.Own = p.made.law, len(s.limits) == 0; !t.op.Own {
		set := newLimitSet(keyed(s.limits))
		t.op.Replacement = set.law
	}
}

// follow returns the limits that a reply counts by, to a step that counted by f. If it brings
// limits, the bucket adopts them, or replaces them by those that it was made with: see
// [store.Op.Yields].
func (b *core) follow(ctx context.Context, p *slowPath, f *inForce, op *store.Op, r *store.Reply) (*inForce, error) {
	is, err := f.learn(r, &p.made, p.shared != nil)
	if err == nil && p.shared != nil && r.State.Speed != 0 && !op.Sound(r) {
		err = errUnsound
	}
	if err != nil || is == f {
		return is, err
	}
	next := is
	if len(r.Limits) > 0 && !op.Yields(r, p.made.law) {
		own := store.Op{Limits: r.Limits, Number: r.Number, Base: op.Base, Age: now(), Action: store.Replace, Replacement: p.made.law, Own: true}
		var replaced reply
		switch err := b.send(ctx, p, new(step), &own, &replaced); {
		case err != nil && r.Stale:
			return is, err
		case err != nil || replaced.Stale: // the next step tries again
			return is, nil
		}
		next = &inForce{limitSet: p.made, number: replaced.Number, born: replaced.State.Born}
	}
	p.force.CompareAndSwap(f, next) // unless another operation has learned of newer ones
	return is, nil
}

// look reads the state, by an empty step. It makes no slowPath.
func (b *core) look(ctx context.Context, name string, s *step, r *reply) error {
	word := b.word.Load()
	if h := b.slots().fleet; h != nil {
		if err := h.look(ctx); err != nil {
			return err
		}
	}
	if b.slow.Load() != nil || word == busy {
		return b.do(ctx, name, s, r)
	}
	// Other limits may be set at this moment, which the cell does not have.
	*r = reply{Reply: store.Reply{Limit: -1, State: store.New(b.born, 1)}, force: b.ofCell()}
	b.read(&r.State, r.force.law, word, b.seen.Load(), now())
	return nil
}

// idle reports whether forgetting the state would lose nothing.
func (b *core) idle() bool {
	p := b.slow.Load()
	switch {
	case p == nil:
		return b.cell.idle(now())
	case p.shared != nil:
		return true
	case !p.slots.idle() || p.local.changed():
		return false
	}
	if r := p.reserved.Load(); r != nil && !r.bucket.Idle() {
		return false
	}
	var r reply
	err := b.do(context.Background(), "look", &step{}, &r)
	return err == nil && r.Expire <= 0
}

// book carries a step out and says why the first of its costs was refused.
func (b *core) book(ctx context.Context, s *step, r *reply) error {
	if i := slices.IndexFunc(s.costs, func(c Cost) bool { return !c.valid() }); i == 0 {
		return badCost(b.key, nil, &s.costs[0], ErrInvalid)
	} else if i > 0 { // what comes after it takes no slot
		s.costs = s.costs[:i]
	}
	if h := b.slots().fleet; h != nil && len(s.costs) > 0 && !s.inJob && s.Move == nil {
		bad := b.inForce().checkBeside(b.key, &s.costs[0], s.Headroom)
		if bad != nil && len(s.back) == 0 { // other limits may be in force
			if err := b.do(ctx, "look", &step{}, new(reply)); err != nil {
				return err
			}
			if bad = b.inForce().checkBeside(b.key, &s.costs[0], s.Headroom); bad != nil {
				return bad
			}
		}
		if bad == nil {
			again, err := h.wait(ctx, s)
			if err != nil {
				return err
			} else if again > 0 {
				refused := &ThrottledError{Key: b.key, RetryAfter: again}
				b.slots().crowded(refused)
				return refused
			}
		}
	}
	if err := b.do(ctx, s.Action.String(), s, r); err != nil || len(r.Charges) > 0 || len(s.costs) == 0 {
		return err
	}
	if bad := r.force.checkBeside(b.key, &s.costs[0], s.Headroom); bad != nil {
		return bad
	} else if !r.Refused && s.Move == nil {
		return &StoreError{Op: s.Action.String(), Key: b.key, Err: errSilent}
	} else if !r.Refused {
		return nil
	}
	refused := b.throttled(r.force, r.Wait, r.State.Rem, r.State.Why, r.Limit)
	if r.noSlot {
		b.slots().crowded(refused)
	}
	return refused
}

// throttled returns the refusal of a call that would leave after a wait, while rem of a hold is
// left, because of a limit of f; -1: because of none.
func (b *core) throttled(f *inForce, wait, rem time.Duration, why uint8, limit int) *ThrottledError {
	e := &ThrottledError{Key: b.key, RetryAfter: wait, Held: rem > 0}
	if e.Held {
		e.Reason = reasonOf(why)
	}
	if limit >= 0 {
		e.Limit = f.label(limit)
	}
	return e
}

// charge returns what a call has taken of the cell as a charge of the key.
func (b *core) charge(f *fill) (c store.Charge) {
	born, epoch := b.slowPath().local.life(f.at) // a charge of an earlier life returns nothing
	c.ID, c.Born, c.Epoch, c.Number = numberOf(f.word, born), born, epoch, firstNumber
	c.N[0] = f.units
	c.Y[0] = float64(f.word-f.at) / float64(b.unit)
	c.Place = time.Duration(f.at) - born
	c.Before = time.Duration(f.before) - born
	c.Free = later(c.Place, (&store.Limit{Rate: b.first().LeakRate}).Above(f.units, 0))
	return c
}

// settle sends some Settled of one call, or keeps them for a queue that waits, if any limit counts
// units.
func (b *core) settle(all ...reports.Report) {
	if !isOpen(all[0].By) && !b.slowPath().outbox.Postpone(all) {
		b.report(all...)
	}
}

// report sends reports, and those that are kept. One that fails and would return units is lost,
// which costs capacity.
func (b *core) report(own ...reports.Report) {
	_ = b.do(context.Background(), "report", &step{reports: own}, new(reply))
}

// succeededAt notes the success of a call that was charged at time t.
func (b *core) succeededAt(t int64) {
	if p := b.slow.Load(); p != nil {
		p.local.succeed(&b.cell, t)
	} else {
		b.info.Or(good)
	}
}

// succeeded notes that a call which knew of epoch has succeeded.
func (b *core) succeeded(epoch int64) {
	p := b.slow.Load()
	if p == nil { // it cost nothing: as a call of the cell
		b.succeededAt(int64(now()))
	} else if p.outbox.Succeeded(epoch) {
		b.report()
	}
}
