// Package core is the machine of a bucket: its key, the slots of its calls in flight, its reports
// and its observers. Package outbound translates what callers write into its words, and has the
// docs.
package core

import (
	"cmp"
	"context"
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

// Core is one bucket.
type Core struct {
	Word     key.Word // see there why it comes first; a Keyed compares the name next to it
	Name     string
	slow     atomic.Pointer[slowPath] // nil while the word is enough for all calls
	Born     time.Duration
	labelled unique.Handle[labelled] // where the word has the only limit
	Keys     atomic.Int32            // limiters around the bucket that Keyeds have
}

// labelled is a limit and its label. Most buckets have the limit of another bucket, and share it.
type labelled struct {
	limit spec.Limit
	label string
}

// lastLabelled is that of the latest bucket with a word: buckets that are made in sequence mostly
// have the same limit, and share its text.
var lastLabelled atomic.Pointer[unique.Handle[labelled]]

func labelledOf(l *spec.Limit) unique.Handle[labelled] {
	if h := lastLabelled.Load(); h != nil && h.Value().limit == *l {
		return *h
	}
	h := unique.Make(labelled{*l, l.Label()})
	lastLabelled.Store(&h)
	return h
}

// slowPath is what a Core needs beyond its word.
type slowPath struct {
	key.Key
	slots     slots.Slots
	observers changes.Observers
	labels    atomic.Pointer[labels]   // of the limits of the last refusal
	latency   atomic.Int64             // how long a reply normally takes to be here, as the last one to a lone call said
	store     store.Store              // that the state is in, or nil
	reserved  atomic.Pointer[reserved] // what Reservations has made last, or nil
}

// labels are those of limits.
type labels struct {
	of   *store.Limit // the first of them
	text []string
}

// reserved is the bucket of Reservations under some limits.
type reserved struct {
	limits *key.Force
	bucket Bucket
}

// Bucket is a bucket that Reservations makes.
type Bucket interface{ Idle() bool }

// Init sets the core up for these limits, in this process or in a store. There name is that of the
// key, if it is not that of the bucket.
func (b *Core) Init(bucket string, limits []spec.Limit, in store.Store, name string) {
	first := &limits[0]
	b.Name, b.Born = bucket, key.Now()
	b.Word.Init(first.Unit, first.Capacity)
	// The state of a window or a calendar is more than a word.
	if len(limits) == 1 && in == nil && !first.InFlight && first.Kind == store.Leaky && b.Word.Begin(first.LeakRate, b.Born) {
		b.labelled = labelledOf(first)
		return
	}
	b.slow.Store(b.newSlowPath(limits, in, cmp.Or(name, key.Name(bucket))))
}

// newSlowPath returns the slow path for these limits. name is that of the key in the store.
func (b *Core) newSlowPath(limits []spec.Limit, in store.Store, name string) *slowPath {
	p := &slowPath{store: in}
	l := spec.Slots(limits)
	p.slots.Init(l)
	law := key.NewLimits(spec.Law(limits))
	if in == nil {
		p.Init(&b.Word, b.Born, law)
		return p
	}
	if l != nil {
		recall := key.NewRecall(in, func() { b.report() })
		p.slots.Share(in, b.Name, l, slots.Hooks{Changed: p.Reports.Changed, Known: recall.Knows, Failed: failed})
		in = recall
	}
	p.InitIn(in, name, law)
	return p
}

// WordLabel returns the label of the limit of the word.
func (b *Core) WordLabel() string { return b.labelled.Value().label }

// slowPath returns what the core has beyond its word, and makes it if there is none yet.
func (b *Core) slowPath() *slowPath {
	if p := b.slow.Load(); p != nil {
		return p
	}
	b.slow.CompareAndSwap(nil, b.newSlowPath([]spec.Limit{b.labelled.Value().limit}, nil, ""))
	return b.slow.Load()
}

// Slow reports whether there is more than the word.
func (b *Core) Slow() bool { return b.slow.Load() != nil }

// Remote reports whether the state is in a store.
func (b *Core) Remote() bool {
	p := b.slow.Load()
	return p != nil && p.Remote()
}

// anyNumber are the slots of a bucket without an InFlight.
var anyNumber slots.Slots

// Slots returns the slots of calls in flight.
func (b *Core) Slots() *slots.Slots {
	if p := b.slow.Load(); p != nil {
		return &p.slots
	}
	return &anyNumber
}

// InForce returns the limits in force, as far as is known here.
func (b *Core) InForce() *key.Force {
	if p := b.slow.Load(); p != nil {
		return p.Force()
	}
	return b.alone()
}

// alone returns the limit of the word.
func (b *Core) alone() *key.Force { return key.One(b.labelled.Value().limit.Law()) }

// Label returns the label of the limit i.
func (b *Core) Label(set *key.Limits, i int) string {
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

// Given returns the limits in force as callers have given them, with one on calls in flight last.
func (b *Core) Given() []spec.Limit { return spec.All(b.InForce().Counts(), b.Slots().Limit()) }

// Observe calls f with each change from now on. stop ends it.
func (b *Core) Observe(f func(changes.Change)) (stop func()) {
	p := b.slowPath()
	return p.observers.Add(f, p.slots.Collected())
}

// Observed returns the observers, or nil if there are none now.
func (b *Core) Observed() *changes.Observers {
	if p := b.slow.Load(); p != nil && p.observers.Any() {
		return &p.observers
	}
	return nil
}

// Changes counts what Waiting is notified of.
func (b *Core) Changes() uint64 { return b.slowPath().Reports.Changes() }

// Waiting registers waiting calls until stop is called, and notifies them of changes.
func (b *Core) Waiting(f func()) (stop func()) {
	leave := b.slowPath().Reports.Listen(f)
	return func() {
		left := leave()
		if h := b.Slots().Holder(); h != nil && !b.slowPath().Reports.Watched() {
			h.Forgo()
		}
		switch {
		case !left:
		case b.Remote(): // not in the way of the caller that stops
			go b.report()
		default:
			b.report()
		}
	}
}

// Reservations returns what make has made of the limits in force without slots, in the same store.
// It is nil if there are none.
func (b *Core) Reservations(make func(limits []spec.Limit, in store.Store, name string) Bucket) Bucket {
	p := b.slowPath()
	for {
		f, old := p.Force(), p.reserved.Load()
		switch {
		case f.Open && old == nil:
			return nil
		case f.Open, old != nil && (old.limits == f || store.Equal(old.limits.Law, f.Law)):
			return old.bucket
		}
		next := make(spec.All(f.Counts(), nil), p.store, p.NameOfReservations(f.Law))
		if p.reserved.CompareAndSwap(old, &reserved{f, next}) {
			return next
		}
	}
}

// Do carries a step out, with the slots of calls in flight. Its error is the ctx's own, or a
// [*Failure].
func (b *Core) Do(ctx context.Context, name string, s *Step, r *Reply) error {
	p := b.slowPath()
	s.InFlight = &p.slots
	all, book := s.Calls, s.slots()
	s.Calls = all[:p.slots.Reserve(&book)]
	s.Slots = s.Slots || p.observers.Due(p.Force().Law)
	err := p.Do(ctx, &s.Step, &r.Reply)
	r.Flight, _ = r.InFlight.(*slots.Limit)
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
		return failed(name, err)
	}
	p.observers.Announce(&r.Reply, r.Collected)
	if p.Reports.Recovered() { // during an outage retries mostly fail
		go b.report()
	}
	return nil
}

// Failure is a step that has failed.
type Failure struct {
	Op  string
	Err error
}

func (f *Failure) Error() string { return f.Op + ": " + f.Err.Error() }

func failed(op string, err error) error { return &Failure{op, err} }

// Look reads the state, by an empty step. It makes no slowPath. Its error is that of Do.
func (b *Core) Look(ctx context.Context, name string, s *Step, r *Reply) error {
	word, here := b.Word.Load()
	if h := b.Slots().Holder(); h != nil {
		if err := h.Look(ctx); err != nil {
			return err
		}
	}
	if b.Slow() || !here {
		return b.Do(ctx, name, s, r)
	}
	// Other limits may be set at this moment, which the word does not have.
	*r = Reply{Reply: key.Reply{Reply: store.Reply{Limit: -1, State: store.New(b.Born, 1)}, Force: b.alone()}}
	b.Word.Read(&r.State, r.Force.Law, word, key.Now())
	return nil
}

// Idle reports whether forgetting the state would lose nothing.
func (b *Core) Idle() bool {
	p := b.slow.Load()
	switch {
	case p == nil:
		return b.Word.Idle(key.Now())
	case p.Remote():
		return true
	case !p.slots.Idle() || p.slots.Changed() || p.Changed():
		return false
	}
	if r := p.reserved.Load(); r != nil && !r.bucket.Idle() {
		return false
	}
	var r Reply
	err := b.Do(context.Background(), "look", &Step{}, &r)
	return err == nil && r.Expire <= 0
}

// settle sends some Settled of one call, or keeps them for a queue that waits, if any limit counts
// units.
func (b *Core) settle(all ...reports.Report) {
	if !key.Open(all[0].By) && !b.slowPath().Reports.Postpone(all) {
		b.report(all...)
	}
}

// report sends reports, and those that are kept. One that fails and would return units is lost,
// which costs capacity.
func (b *Core) report(own ...reports.Report) {
	_ = b.Do(context.Background(), "report", &Step{Step: key.Step{Told: own}}, new(Reply))
}

// succeededAt notes the success of a call that was charged to the word at time t.
func (b *Core) succeededAt(t int64) {
	if p := b.slow.Load(); p != nil {
		p.Key.Succeeded(t)
	} else {
		b.Word.Succeeded()
	}
}

// succeeded notes that a call which knew of epoch has succeeded.
func (b *Core) succeeded(epoch int64) {
	p := b.slow.Load()
	if p == nil { // it cost nothing: as a call of the word
		b.succeededAt(int64(key.Now()))
	} else if p.Reports.Succeeded(epoch) {
		b.report()
	}
}
