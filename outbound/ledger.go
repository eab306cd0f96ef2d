package outbound

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

const lag = leak.BookingGrace

// ledger is what a bucket needs beyond its word: several limits, bookings,
// holds, calls at once, a store. It is made when it is first needed.
type ledger struct {
	store leak.Store              // nil: stored, below
	made  *limitSet               // what a bucket in a store was made with
	force atomic.Pointer[inForce] // the limits in force, as far as is known here

	success  atomic.Int64 // the newest epoch in which a call has succeeded
	reported atomic.Int64 // the newest that the state was told of
	// The newest epoch in which the store has not heard of any success since the hold.
	unconfirmed atomic.Int64

	random func() float64 // of 0 to 1, for what is to differ from worker to worker

	slots atomic.Int64 // calls at once; 0: any number. Changed with mu held

	mu   sync.Mutex // protects what follows
	used int        // slots taken
	// Of those in use, the ones that a trip to a store is under way for, and whether
	// somebody was refused for want of them.
	reserved int
	missed   bool
	taken    slots  // those of calls in progress
	turn     uint64 // operations so far, in this process
	// Slots of permits that were dropped without Done, so far.
	collected int
	stored    leak.Stored // if there is no store
	// What the fast path needs, beside that.
	born time.Duration // of the life in which the word counts
	base int64         // the epoch that it knows of
	idle time.Duration // when the state is as good as a new one, if it is left alone
	seen int64         // the bucket's, when its state came here

	hold     hold
	lost     atomic.Int64  // slots of permits that were dropped without Done
	gen      atomic.Uint64 // of what the watchers hear of
	watchMu  sync.Mutex    // protects watchers
	watchers map[*func()]struct{}
	pending  []report                 // settles, while somebody waits; watchMu protects it, too
	deferred atomic.Bool              // there are some
	unheard  []report                 // settles that a store has failed with; watchMu protects it, too
	owing    atomic.Bool              // there are some
	watches  atomic.Pointer[[]*watch] // who hears of changes; nil: nobody
}

func newLedger(b *Bucket, limits []Limit) *ledger {
	l := &ledger{random: rand.Float64}
	l.success.Store(never)
	l.reported.Store(never)
	l.unconfirmed.Store(never)
	l.stored.State = leak.New(b.born)
	l.born, l.base = b.born, int64(b.born)
	f := &inForce{limitSet: newLimitSet(limits)}
	l.force.Store(f)
	l.slots.Store(int64(f.slots()))
	l.stored.Limits = f.law
	return l
}

// has reports whether these limits are in force in a bucket of this process.
func (b *Bucket) has(limits []Limit) bool {
	l := b.slow.Load()
	if l == nil {
		return slices.Equal(limits, b.first())
	}
	return slices.Equal(limits, l.force.Load().all)
}

// ledger returns the bucket's ledger and makes one if there is none yet.
func (b *Bucket) ledger() *ledger {
	if l := b.slow.Load(); l != nil {
		return l
	}
	b.slow.CompareAndSwap(nil, newLedger(b, b.first()))
	return b.slow.Load()
}

// first returns the limit that the bucket was made with, if it was one.
func (b *Bucket) first() []Limit {
	more := b.more()
	return []Limit{{Capacity: b.capacity, LeakRate: b.rate, Unit: b.unitOf(), Name: more.name, n: more.n, window: more.window, atOnce: b.rate == 0}}
}

func (b *Bucket) limitName() string { return b.more().name }

// more returns what else the first limit says.
func (b *Bucket) more() said {
	if b.said == (unique.Handle[said]{}) {
		return said{}
	}
	return b.said.Value()
}

// do carries an operation out, and writes its result, where the bucket's state is.
func (b *Bucket) do(ctx context.Context, name string, s *step, r *reply) error {
	l := b.ledger()
	// Settles do not ride on what a caller's ctx may end, nor on what may be refused.
	reports, reported := l.piggyback(l.store == nil || s.waits || ctx.Done() == nil && s.action < leak.Resume)
	if len(reports) > 0 {
		s.reports = append(reports, s.reports...)
	}
	t := trips.Get().(*trip)
	if l.store == nil {
		b.local(l, s, t, r)
	} else if err := b.shared(ctx, l, s, t, r); err != nil {
		t.done()
		l.keep(s.reports, reported)
		if err == ctx.Err() { // it is no fault of the store's
			return err
		}
		return &StoreError{Op: name, Key: b.key, Err: err}
	}
	t.note()
	t.done()
	if s.action == leak.Replace || s.action == leak.Resume || len(s.reports) > 0 {
		l.changed()
	}
	l.announce(r)
	return nil
}

// mostStale is how often other limits may be found in force before a step is given up.
const mostStale = 8

var errStale = errors.New("the limits change faster than they can be heard of")

// shared is do for a bucket in a store.
func (b *Bucket) shared(ctx context.Context, l *ledger, s *step, t *trip, r *reply) (err error) {
	l.mu.Lock()
	costs := l.reserve(s)
	l.mu.Unlock()
	for stale := 0; ; stale++ {
		r.force = l.force.Load()
		r.bad = t.resolve(b, s, r.force)
		if s.action == leak.Replace {
			t.replace(s, l, r.force)
		}
		r.Reply, err = l.store.Update(ctx, b.key, &t.op)
		if err != nil || !r.Stale {
			break
		}
		if r.Reported {
			t.note()
			s.reports, s.back = nil, nil
			l.changed()
		}
		if err = l.stale(r.force, &r.Reply); err == nil && stale == mostStale {
			err = errStale
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		r.Reply = leak.Reply{}
	} else {
		r.force = l.heard(r.force, &r.Reply, t.set)
	}
	l.seated(s, costs, r)
	if err != nil {
		return err
	}
	if l.owing.Load() {
		go b.again()
	}
	if r.State.Fails >= 0 {
		l.unconfirmed.Store(r.State.Epoch)
	} else {
		l.unconfirmed.Store(never)
	}
	r.extended = l.hold.extends(&r.State)
	return nil
}

// replace has the trip set limits.
func (t *trip) replace(s *step, l *ledger, f *inForce) {
	set := *l.made
	if len(s.limits) > 0 {
		limits := slices.Clone(s.limits)
		inherit(limits, f.own)
		set = newLimitSet(limits)
	}
	t.set = &set
	t.op.Replacement, t.op.Unset = set.law, len(s.limits) == 0
}

// local is do for a bucket of this process.
func (b *Bucket) local(l *ledger, s *step, t *trip, r *reply) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.force.Load()
	if len(f.own) == 1 {
		b.open(l)
	}
	if b.info.Load()&good != 0 {
		l.stored.State.Succeeded(l.base)
	}
	if s.action == leak.Replace { // until now the old ones, so that what they leaked is known
		set := newLimitSet(s.limits)
		t.set = &set
		l.slots.Store(int64(set.slots()))
	}
	costs := l.reserve(s)
	r.bad = t.resolve(b, s, f)
	if t.set != nil {
		t.op.Replacement, t.op.Unset = t.set.law, true
	}
	r.Reply = t.op.Apply(&l.stored, now())
	r.force = l.heard(f, &r.Reply, t.set)
	if t.set != nil && r.force == f { // perhaps another AtOnce
		r.force = &inForce{limitSet: *t.set, version: f.version, before: f.before}
		l.force.Store(r.force)
	}
	l.seat(s, costs, r)
	l.turn++
	r.extended = l.hold.extends(&r.State)
	r.given, r.turn = r.force.all, l.turn
	if len(r.force.own) == 1 {
		l.idle = later(r.State.At, r.Expire)
		b.shut(l)
	}
}

// piggyback returns the reports that ride on the next operation: the first success
// after a hold, and, if so asked, settles. reported is the epoch that the state was told
// of before.
func (l *ledger) piggyback(settles bool) (reports []report, reported int64) {
	e := l.success.Load()
	if reported = l.reported.Swap(e); e != reported {
		reports = append(reports, report{Report: leak.Report{Kind: leak.Succeeded, Epoch: e}})
	}
	if settles && l.deferred.Load() {
		l.watchMu.Lock()
		reports = append(reports, l.pending...)
		l.pending = nil
		l.deferred.Store(false)
		l.watchMu.Unlock()
	}
	return reports, reported
}

// keep keeps, of the reports of a trip that has failed, what is to be told again:
// a success, and what calls have cost beyond their cost. Nobody knows what has
// become of the trip. What it has added may be added twice, which costs room; what
// it may have given back is not given back again.
func (l *ledger) keep(reports []report, reported int64) {
	for _, r := range reports {
		switch r.Kind {
		case leak.Succeeded:
			l.reported.CompareAndSwap(r.Epoch, reported)
		case leak.Settled:
			beyond := false
			for u := range r.used {
				beyond = beyond || r.used[u] > r.cost[u]
				r.used[u] = max(r.used[u], r.cost[u])
			}
			if !beyond {
				continue
			}
			c := *r.Charge // the call's own may be in use when this one is
			r.Charge = &c
			l.watchMu.Lock()
			l.unheard = append(l.unheard, r)
			l.owing.Store(true)
			l.watchMu.Unlock()
		}
	}
}

// again tells what was kept, now that a trip has gone well: in an outage it would
// only be told in vain, and each time perhaps not quite in vain.
func (b *Bucket) again() {
	l := b.ledger()
	l.watchMu.Lock()
	reports := l.unheard
	l.unheard = nil
	l.owing.Store(false)
	l.watchMu.Unlock()
	if len(reports) > 0 {
		_ = b.do(context.Background(), "settle", &step{reports: reports}, new(reply))
	}
}

// settle sends a Settled, and returns whether the state has it already.
func (b *Bucket) settle(r report) bool {
	if b.ledger().postpone(r) {
		return false
	}
	b.report(r)
	return true
}

// report sends one report by itself, and returns whether it has held the bucket, or for
// longer: the hold then ends after r.Wait, and no later, and did not end there before.
// Of what fails, what gives back is lost, and costs room.
func (b *Bucket) report(r report) (held bool) {
	if l := b.ledger(); r.Kind == leak.Refused && l.store == nil {
		r.Stagger = stagger * l.random()
	}
	reports := [1]report{r}
	var result reply
	if err := b.do(context.Background(), "report", &step{reports: reports[:]}, &result); err != nil {
		return false
	}
	rem := result.State.Rem
	return result.extended && rem >= r.Wait-moved && rem <= later(r.Wait, moved)
}

// stagger is the largest part by which a doubled hold of a bucket that nobody shares is
// longer, by chance. Workers that were refused together come back one after the other
// then, and not together, to be refused again.
const stagger = 0.25

// postpone keeps a settle for those who wait, if there are any. Units come back
// only as far as they are not promised to the booked. Whoever waits hears of the
// change, takes back what it has booked far ahead, and its booking anew carries
// the settle: so the units come back to the one who waits for them.
func (l *ledger) postpone(r report) bool {
	l.watchMu.Lock()
	wanted := len(l.watchers) > 0
	if wanted {
		c := *r.Charge // the call's own may be in use when this one is
		r.Charge = &c
		l.pending = append(l.pending, r)
		l.deferred.Store(true)
	}
	l.watchMu.Unlock()
	if wanted {
		l.changed()
	}
	return wanted
}

// succeeded notes that a call which knew of epoch has succeeded. That rides on the
// next operation. Only the first success that is known of after a hold goes at once:
// in a large fleet this worker's next turn may be far away, and until then every
// refusal would double the hold.
func (b *Bucket) succeeded(epoch int64) {
	l := b.slow.Load()
	if l == nil { // it cost nothing: as a call of the fast path
		b.succeed(int64(now()))
		return
	}
	for e := l.success.Load(); e < epoch; e = l.success.Load() {
		if l.success.CompareAndSwap(e, epoch) {
			if l.unconfirmed.CompareAndSwap(epoch, never) {
				_ = b.do(context.Background(), "report", &step{}, new(reply))
			}
			return
		}
	}
}
