package outbound

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

const lag = leak.Lag

// ledger is what a bucket needs beyond its word: several limits, bookings,
// holds, calls at once, a store. It is made when it is first needed.
type ledger struct {
	store  Store                   // nil: stored, below
	latest atomic.Pointer[[]Limit] // the limits of a store's latest reply
	heard  atomic.Int64            // the newest epoch in which a call has succeeded
	told   atomic.Int64            // the newest that the state was told of
	doubt  atomic.Int64            // the newest in which the store has not heard of any success since the hold

	random func() float64 // of 0 to 1, for what is to differ from worker to worker

	slots atomic.Int64 // calls at once; 0: any number. Changed with mu held

	mu     sync.Mutex // protects what follows
	limits []Limit    // as given, an AtOnce included
	own    []Limit    // without it; never changed in place
	used   int        // slots taken
	// Of those in use, the ones that a trip to a store is under way for, and whether
	// somebody was refused for want of them.
	reserved int
	missed   bool
	taken    slots  // those of calls in progress
	turn     uint64 // operations so far, in this process
	// Slots of permits that were dropped without Done, so far.
	collected int
	stored    Stored // if there is no store
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
	pending  []Report                 // settles, while somebody waits; watchMu protects it, too
	deferred atomic.Bool              // there are some
	unheard  []Report                 // settles that a store has failed with; watchMu protects it, too
	owing    atomic.Bool              // there are some
	watches  atomic.Pointer[[]*watch] // who hears of changes; nil: nobody
}

// inForce returns the limits in force, as far as is known here, without an AtOnce.
func (l *ledger) inForce() []Limit {
	if set := l.latest.Load(); set != nil {
		return *set
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own
}

func newLedger(b *Bucket, limits []Limit) *ledger {
	l := &ledger{random: rand.Float64}
	l.heard.Store(never)
	l.told.Store(never)
	l.doubt.Store(never)
	l.stored.State = leak.New(b.born)
	l.born, l.base = b.born, int64(b.born)
	l.set(limits)
	l.stored.Limits = l.own
	return l
}

// set takes the limits apart; mu is held, or nobody else knows of l.
func (l *ledger) set(limits []Limit) {
	l.limits, l.own = limits, limits
	slots := 0.0
	for i := range limits {
		if limits[i].atOnce {
			slots = limits[i].Capacity
			l.own = append(append([]Limit{}, limits[:i]...), limits[i+1:]...)
			break
		}
	}
	l.slots.Store(int64(slots))
}

// has reports whether these limits are in force in a bucket of this process.
func (b *Bucket) has(limits []Limit) bool {
	l := b.slow.Load()
	if l == nil {
		return slices.Equal(limits, b.first())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Equal(limits, l.limits)
}

// shapes returns what the arithmetic needs of the first limit.
func (l *ledger) shapes() []leak.Limit {
	return []leak.Limit{l.own[0].shape()}
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

var ops = sync.Pool{New: func() any { return new(Op) }}

// do carries an operation out, and writes its result, where the bucket's state is.
func (b *Bucket) do(ctx context.Context, name string, op *Op, r *Result) error {
	l := b.ledger()
	// Settles do not ride on what a caller's ctx may end, nor on what may be refused.
	reports, told := l.riders(l.store == nil || op.waits || ctx.Done() == nil && op.Action < Resume)
	if len(reports) > 0 {
		op.Reports = append(reports, op.Reports...)
	}
	if l.store == nil {
		*r = b.local(l, op)
		r.sign()
		if op.Action == Replace || op.Action == Resume || len(op.Reports) > 0 {
			l.changed()
		}
		l.announce(r)
		return nil
	}
	op.Limits = l.own
	l.mu.Lock()
	costs := l.reserve(op)
	l.mu.Unlock()
	far := ops.Get().(*Op) // a store may let its argument escape to the heap
	room := far.were
	*far = *op
	far.were = room
	far.again()
	var err error
	*r, err = l.store.Update(ctx, b.key, far)
	if err != nil {
		far.again() // what was not written has not happened to them
	}
	clear(far.were)
	*far = Op{were: far.were[:0]}
	ops.Put(far)
	l.seated(op, costs, r)
	if err != nil {
		l.keep(op.Reports, told)
		if err == ctx.Err() { // it is no fault of the store's
			return err
		}
		return &StoreError{Op: name, Key: b.key, Err: err}
	}
	if was := l.latest.Load(); was == nil || !sameLimits(*was, r.Limits) {
		limits := r.Limits
		l.latest.Store(&limits)
	}
	if l.owing.Load() {
		go b.again()
	}
	if r.State.Fails >= 0 {
		l.doubt.Store(r.State.Epoch)
	} else {
		l.doubt.Store(never)
	}
	r.extended = l.hold.extends(&r.State)
	r.sign()
	if op.Action == Replace || op.Action == Resume || len(op.Reports) > 0 {
		l.changed()
	}
	l.announce(r)
	return nil
}

// sign notes on the charges under which limits they were booked.
func (r *Result) sign() {
	for i := range r.Charges {
		r.Charges[i].Version, r.Charges[i].limits = r.Version, r.Limits
	}
}

// local is do for a bucket of this process.
func (b *Bucket) local(l *ledger, op *Op) Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.own) == 1 {
		b.open(l)
	}
	if b.info.Load()&good != 0 {
		l.stored.State.Succeeded(l.base)
	}
	op.Limits = l.own // until now, so that what they leaked is known
	if op.Action == Replace {
		l.set(op.Replacement)
		op.Replacement = l.own
	}
	op.free = l.slots.Load() > 0
	costs := l.reserve(op)
	r := op.Apply(&l.stored, now())
	l.seat(op, costs, &r)
	l.turn++
	r.extended = l.hold.extends(&r.State)
	r.given, r.turn = l.limits, l.turn
	if len(l.own) == 1 {
		l.idle = later(r.State.At, r.Expire)
		b.shut(l)
	}
	return r
}

// riders returns the reports that ride on the next operation: the first success
// after a hold, and, if so asked, settles. told is the epoch that the state was told
// of before.
func (l *ledger) riders(settles bool) (reports []Report, told int64) {
	e := l.heard.Load()
	if told = l.told.Swap(e); e != told {
		reports = append(reports, Report{Kind: Succeeded, Epoch: e})
	}
	if settles && l.deferred.Load() {
		l.watchMu.Lock()
		reports = append(reports, l.pending...)
		l.pending = nil
		l.deferred.Store(false)
		l.watchMu.Unlock()
	}
	return reports, told
}

// keep keeps, of the reports of a trip that has failed, what is to be told again:
// a success, and what calls have cost beyond their cost. Nobody knows what has
// become of the trip. What it has added may be added twice, which costs room; what
// it may have given back is not given back again.
func (l *ledger) keep(reports []Report, told int64) {
	for _, r := range reports {
		switch r.Kind {
		case Succeeded:
			l.told.CompareAndSwap(r.Epoch, told)
		case Settled:
			beyond := false
			for u := range r.Used {
				beyond = beyond || r.Used[u] > r.Cost[u]
				r.Used[u] = max(r.Used[u], r.Cost[u])
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
		_ = b.do(context.Background(), "settle", &Op{Reports: reports}, new(Result))
	}
}

// settle sends a Settled, and returns whether the state has it already.
func (b *Bucket) settle(r Report) bool {
	if b.ledger().postpone(r) {
		return false
	}
	b.report(r)
	return true
}

// report sends one report by itself, and returns whether it has held the bucket, or for
// longer: the hold then ends after r.Wait, and no later, and did not end there before.
// Of what fails, what gives back is lost, and costs room.
func (b *Bucket) report(r Report) (held bool) {
	if l := b.ledger(); r.Kind == Refused && l.store == nil {
		r.spread = stagger * l.random()
	}
	reports := [1]Report{r}
	var result Result
	if err := b.do(context.Background(), "report", &Op{Reports: reports[:]}, &result); err != nil {
		return false
	}
	rem := result.State.Rem
	return result.extended && rem >= r.Wait-moved && rem <= later(r.Wait, moved)
}

// postpone keeps a settle for those who wait, if there are any. Units come back
// only as far as they are not promised to the booked. Whoever waits hears of the
// change, takes back what it has booked far ahead, and its booking anew carries
// the settle: so the units come back to the one who waits for them.
func (l *ledger) postpone(r Report) bool {
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
	for e := l.heard.Load(); e < epoch; e = l.heard.Load() {
		if l.heard.CompareAndSwap(e, epoch) {
			if l.doubt.CompareAndSwap(epoch, never) {
				_ = b.do(context.Background(), "report", &Op{}, new(Result))
			}
			return
		}
	}
}
