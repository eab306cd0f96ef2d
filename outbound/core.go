package outbound

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"
	"unique"

	"github.com/dripfeed/dripfeed/outbound/internal/changes"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/slots"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// core is a bucket without its exported methods.
type core struct {
	word     key.Word // see there why it comes first; a Keyed compares the key next to it
	key      string
	slow     atomic.Pointer[slowPath] // nil while the word is enough for all calls
	born     time.Duration
	labelled unique.Handle[labelledLimit] // where the word has the only limit
	keys     atomic.Int32                 // limiters around the bucket that Keyeds have
}

// labelledLimit is a limit and its label. Most buckets have the limit of another bucket, and share
// it.
type labelledLimit struct {
	limit spec.Limit
	label string
}

// lastLabelled is that of the latest bucket with a word: buckets that are made in sequence mostly
// have the same limit, and share its text.
var lastLabelled atomic.Pointer[unique.Handle[labelledLimit]]

func labelledOf(l *spec.Limit) unique.Handle[labelledLimit] {
	if h := lastLabelled.Load(); h != nil && h.Value().limit == *l {
		return *h
	}
	h := unique.Make(labelledLimit{*l, l.Label()})
	lastLabelled.Store(&h)
	return h
}

// slowPath is what a core needs beyond its word.
type slowPath struct {
	key.Key
	slots     slots.Slots
	observers changes.Observers
	labels    atomic.Pointer[labels]   // of the limits of the last refusal
	latency   atomic.Int64             // how long a reply normally takes to be here, as the last one to a lone call said
	store     store.Store              // that the state is in, or nil
	reserved  atomic.Pointer[reserved] // what Reservations has made last, or nil
}

// reserved is the bucket of Reservations under some limits.
type reserved struct {
	limits *key.Force
	bucket interface{ Idle() bool } // a *Bucket, which is built on a core
}

// labels are those of limits.
type labels struct {
	of   *store.Limit // the first of them
	text []string
}

// init sets the core up for these limits, in this process or in a store. There name is that of the
// key, if it is not that of the bucket.
func (b *core) init(bucket string, limits []spec.Limit, in store.Store, name string) {
	first := &limits[0]
	b.key, b.born = bucket, now()
	b.word.Init(first.Unit, first.Capacity)
	// The state of a window or a calendar is more than a word.
	if len(limits) == 1 && in == nil && !first.InFlight && first.Kind == store.Leaky && b.word.Begin(first.LeakRate, b.born) {
		b.labelled = labelledOf(first)
		return
	}
	b.slow.Store(b.newSlowPath(limits, in, cmp.Or(name, key.Name(bucket))))
}

// newSlowPath returns the slow path for these limits. name is that of the key in the store.
func (b *core) newSlowPath(limits []spec.Limit, in store.Store, name string) *slowPath {
	p := &slowPath{store: in}
	l := spec.Slots(limits)
	p.slots.Init(l)
	law := key.NewLimits(spec.Law(limits))
	if in == nil {
		p.Init(&b.word, b.born, law)
		return p
	}
	if l != nil {
		recall := key.NewRecall(in, func() { b.report() })
		p.slots.Share(in, b.key, l, slots.Hooks{Changed: p.Reports.Changed, Known: recall.Knows, Failed: b.failed})
		in = recall
	}
	p.InitIn(in, name, law)
	return p
}

// first returns the limit of the word.
func (b *core) first() spec.Limit { return b.labelled.Value().limit }

// slowPath returns what the core has beyond its word, and makes it if there is none yet.
func (b *core) slowPath() *slowPath {
	if p := b.slow.Load(); p != nil {
		return p
	}
	b.slow.CompareAndSwap(nil, b.newSlowPath([]spec.Limit{b.first()}, nil, ""))
	return b.slow.Load()
}

// remote reports whether the state is in a store.
func (b *core) remote() bool {
	p := b.slow.Load()
	return p != nil && p.Remote()
}

// anyNumber are the slots of a bucket without an InFlight.
var anyNumber slots.Slots

// slots returns the slots of calls in flight.
func (b *core) slots() *slots.Slots {
	if p := b.slow.Load(); p != nil {
		return &p.slots
	}
	return &anyNumber
}

// inForce returns the limits in force, as far as is known here.
func (b *core) inForce() *key.Force {
	if p := b.slow.Load(); p != nil {
		return p.Force()
	}
	return b.alone()
}

// alone returns the limit of the word.
func (b *core) alone() *key.Force {
	return key.One(b.first().Law())
}

// label returns the label of the limit i, as [State.Label] has it.
func (b *core) label(set *key.Limits, i int) string {
	p := b.slowPath()
	l := p.labels.Load()
	if l == nil || l.of != &set.Law[0] {
		l = &labels{of: &set.Law[0]}
		for j := range set.Law {
			l.text = append(l.text, spec.OfLaw(&set.Law[j]).Label())
		}
		p.labels.Store(l)
	}
	return l.text[i]
}

// given returns the limits in force as callers have given them, with an InFlight.
func (b *core) given() []spec.Limit {
	return spec.All(b.inForce().Counts(), b.slots().Limit())
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
	for _, l := range p.Force().Counts() {
		f(int(l.Unit), l.Capacity, l.Rate)
	}
}

// do carries a step out, with the slots of calls in flight.
func (b *core) do(ctx context.Context, name string, s *step, r *reply) error {
	p := b.slowPath()
	s.InFlight = &p.slots
	all, book := s.Calls, s.slots()
	s.Calls = all[:p.slots.Reserve(&book)]
	s.Slots = s.Slots || p.observers.Due(p.Force().Law)
	err := p.Do(ctx, &s.Step, &r.Reply)
	r.inFlight, _ = r.InFlight.(*slots.Limit)
	r.Seated = p.slots.Seat(ctx, &book, len(r.Charges), r.Refused)
	s.Calls, s.freed = all, 0
	r.seat()
	if r.Missed {
		p.Reports.Changed()
	}
	switch {
	case err == nil:
	case err == ctx.Err(): // it is no fault of the store's
		return err
	default:
		return b.failed(name, err)
	}
	p.observers.Announce(&r.Reply, r.Collected)
	if p.Reports.Recovered() { // during an outage retries mostly fail
		go b.report()
	}
	return nil
}

// failed returns the error of an operation for the bucket's callers.
func (b *core) failed(op string, err error) error {
	if err == key.ErrLimits {
		err = &LimitError{Reason: err.Error()}
	}
	return &StoreError{Op: op, Key: b.key, Err: err}
}

// look reads the state, by an empty step. It makes no slowPath.
func (b *core) look(ctx context.Context, name string, s *step, r *reply) error {
	word, here := b.word.Load()
	if h := b.slots().Holder(); h != nil {
		if err := h.Look(ctx); err != nil {
			return err
		}
	}
	if b.slow.Load() != nil || !here {
		return b.do(ctx, name, s, r)
	}
	// Other limits may be set at this moment, which the word does not have.
	*r = reply{Reply: key.Reply{Reply: store.Reply{Limit: -1, State: store.New(b.born, 1)}, Force: b.alone()}}
	b.word.Read(&r.State, r.Force.Law, word, now())
	return nil
}

// idle reports whether forgetting the state would lose nothing.
func (b *core) idle() bool {
	p := b.slow.Load()
	switch {
	case p == nil:
		return b.word.Idle(now())
	case p.Remote():
		return true
	case !p.slots.Idle() || p.slots.Changed() || p.Changed():
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
	if i := slices.IndexFunc(s.Calls, func(c reports.Numbers) bool { return !(*Cost)(&c).valid() }); i == 0 {
		return costError(b.key, nil, (*Cost)(&s.Calls[0]), ErrInvalid)
	} else if i > 0 { // what comes after it takes no slot
		s.Calls = s.Calls[:i]
	}
	if h := b.slots().Holder(); h != nil && len(s.Calls) > 0 && !s.inJob && s.Move == nil {
		bad := check(&b.inForce().Limits, b.key, (*Cost)(&s.Calls[0]), s.Headroom)
		if bad != nil && len(s.Back) == 0 { // other limits may be in force
			if err := b.do(ctx, "look", &step{}, new(reply)); err != nil {
				return err
			}
			if bad = check(&b.inForce().Limits, b.key, (*Cost)(&s.Calls[0]), s.Headroom); bad != nil {
				return bad
			}
		}
		if bad == nil {
			book := s.slots()
			again, err := h.Wait(ctx, &book)
			if err != nil {
				return err
			} else if again > 0 {
				refused := &ThrottledError{Key: b.key, RetryAfter: again}
				b.crowded(refused)
				return refused
			}
		}
	}
	if err := b.do(ctx, s.Action.String(), s, r); err != nil || len(r.Charges) > 0 || len(s.Calls) == 0 {
		return err
	}
	if bad := check(&r.Force.Limits, b.key, (*Cost)(&s.Calls[0]), s.Headroom); bad != nil {
		return bad
	} else if !r.Refused && s.Move == nil {
		return &StoreError{Op: s.Action.String(), Key: b.key, Err: key.ErrSilent}
	} else if !r.Refused {
		return nil
	}
	refused := b.throttled(r.Force, r.Wait, r.State.Rem, r.State.Why, r.Limit)
	if r.NoSlot {
		b.crowded(refused)
	}
	return refused
}

// throttled returns the refusal of a call that would leave after a wait, while rem of a hold is
// left, because of a limit of f; -1: because of none.
func (b *core) throttled(f *key.Force, wait, rem time.Duration, why uint8, limit int) *ThrottledError {
	e := &ThrottledError{Key: b.key, RetryAfter: wait, Held: rem > 0}
	if e.Held {
		e.Reason = reasonOf(why)
	}
	if limit >= 0 {
		e.Limit = b.label(&f.Limits, limit)
	}
	return e
}

// crowded adds the calls in progress, which have taken all slots, to the error.
func (b *core) crowded(e *ThrottledError) {
	if l := b.slots().Limit(); l != nil {
		e.Limit = spec.OfSlots(l).Label()
	}
	e.InProgress, e.Oldest = b.slots().Crowd()
}

// concerns reports whether the answer to a call that left so long ago matters to the bucket. What
// is left of a quota matters if the calls since could have used it up.
func (b *core) concerns(a *Answer, since time.Duration) bool {
	switch a.Kind {
	case AnswerRefused:
		return true
	case AnswerHold:
		return a.Wait > 0
	case AnswerSent:
		return a.Wait > jitter
	case AnswerRemaining:
	default:
		return false
	}
	if a.Wait <= soon || !a.Remaining.reported() {
		return false
	}
	used := Cost{-1, -1, -1, -1} // at most; negative if no limit counts that unit
	b.each(func(unit int, capacity, rate float64) {
		if n := capacity + rate*since.Seconds(); used[unit] < 0 || n < used[unit] {
			used[unit] = n
		}
	})
	for unit, n := range a.Remaining {
		if n >= 0 && n <= used[unit] {
			return true
		}
	}
	return false
}

// settle sends some Settled of one call, or keeps them for a queue that waits, if any limit counts
// units.
func (b *core) settle(all ...reports.Report) {
	if !key.Open(all[0].By) && !b.slowPath().Reports.Postpone(all) {
		b.report(all...)
	}
}

// report sends reports, and those that are kept. One that fails and would return units is lost,
// which costs capacity.
func (b *core) report(own ...reports.Report) {
	_ = b.do(context.Background(), "report", &step{Step: key.Step{Told: own}}, new(reply))
}

// succeededAt notes the success of a call that was charged to the word at time t.
func (b *core) succeededAt(t int64) {
	if p := b.slow.Load(); p != nil {
		p.Key.Succeeded(t)
	} else {
		b.word.Succeeded()
	}
}

// succeeded notes that a call which knew of epoch has succeeded.
func (b *core) succeeded(epoch int64) {
	p := b.slow.Load()
	if p == nil { // it cost nothing: as a call of the word
		b.succeededAt(int64(now()))
	} else if p.Reports.Succeeded(epoch) {
		b.report()
	}
}
