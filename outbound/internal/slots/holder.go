package slots

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/store"
)

const (
	// idleFor is how long an unwanted slot stays idle, unless another process waits.
	idleFor = 5 * time.Millisecond
	// settled is how long a process keeps slots that it has been granted, even if other processes
	// have less.
	settled = 100 * time.Millisecond
	// wantedFor is how long a caller that has found no slot counts as waiting for one. A queue asks
	// again each second.
	wantedFor = 2 * time.Second
	// firstTry and lastTry are the pauses after asks without an answer.
	firstTry, lastTry = 50 * time.Millisecond, time.Second
)

// Holder holds a shared bucket's slots among those of all processes, as [store.Ask] says. It asks
// by a timer, and only while it has slots or calls wait for some. Slots.mu protects it.
type Holder struct {
	of    *Slots
	key   key.Key // of the slots: a limit that leaks all of them in a lease
	id    uint64  // of this bucket in this process
	hooks Hooks

	have     int
	sent     time.Time       // when the last answered ask was sent, or zero
	last     store.Allotment // its answer
	others   int             // slots that other processes hold, by the last reply
	granted  time.Duration
	idleFrom time.Duration // idle slots are returned from then on
	pause    time.Duration // no ask leaves before
	tries    time.Duration // the last pause
	plain    demand        // of calls that take any slot
	low      demand        // of calls that keep slots free
	waiters  int           // calls that wait for the answer only
	waits    bool          // the store knows that calls wait
	asking   bool
	due      bool          // ask now
	full     bool          // another limit has refused the last booking
	err      error         // of the last ask
	answered chan struct{} // closed after the next answer
	timer    *time.Timer
}

// demand counts the calls of queues that have found no slot.
type demand struct {
	calls    int
	looked   time.Duration // when the last of them looked for one
	again    time.Duration // they do not ask before
	headroom float64       // the fraction of the slots that they keep free
	// granted are slots in hand that an answer has granted them, and at is when. They matter with a
	// headroom alone.
	granted int
	at      time.Duration
}

// Hooks are what slots in a store need of their bucket.
type Hooks struct {
	Changed func()                           // there may be slots
	Known   func() bool                      // a booking on the bucket's key needs no request now
	Failed  func(op string, err error) error // returns an error for the bucket's callers
}

// Share has all processes share, in a store, the slots that Init has set up.
func (p *Slots) Share(in store.Store, bucket string, l *Limit, hooks Hooks) {
	none := demand{looked: key.Never, again: key.Never, at: key.Never}
	h := &Holder{of: p, id: rand.Uint64() | 1, hooks: hooks, answered: make(chan struct{}), granted: key.Never, idleFrom: key.Never, pause: key.Never, plain: none, low: none}
	h.key.InitIn(in, key.NameOfSlots(bucket), key.NewLimits([]store.Limit{leased(l)}))
	p.holder = h
}

// do carries a step out on the key of the slots.
func (h *Holder) do(ctx context.Context, op string, s *key.Step, r *key.Reply) error {
	err := h.key.Do(ctx, s, r)
	if err != nil && err != ctx.Err() {
		err = h.hooks.Failed(op, err)
	}
	return err
}

// leased is what a store keeps of the slots: a leaky limit that no call fills.
func leased(l *Limit) store.Limit {
	most := float64(l.Most)
	return store.Limit{Capacity: most, Rate: most / l.Lease.Seconds(), Name: "in flight", Version: int32(l.Version)}
}

// learn takes over the limit that is in force for all.
func (h *Holder) learn() (changed bool) {
	law, l := &h.key.Force().Law[0], *h.of.limit.Load()
	d := time.Duration(math.Round(law.Capacity/law.Rate*1e3)) * time.Millisecond
	is := l
	is.Most, is.Lease, is.Version = int(law.Capacity), min(max(d, store.MinLease), store.MaxLease), int(law.Version)
	if is == l {
		return false
	}
	h.of.limit.Store(&is)
	return true
}

// lapsed reports whether the last answer is too old to rely on the slots.
func (h *Holder) lapsed() bool {
	t := time.Now()
	return h.sent.IsZero() || max(t.Sub(h.sent), t.Round(0).Sub(h.sent.Round(0))) >= h.of.limit.Load().Lease/2
}

func (h *Holder) idle() int { return max(0, h.have-h.of.used) }

// surplus returns how many idle slots no call may use.
func (h *Holder) surplus() int {
	switch {
	case h.lapsed():
		return h.idle()
	case h.last.Keep < h.have && (h.last.Free < 0 || key.Now()-h.granted >= settled):
		return min(h.idle(), h.have-h.last.Keep)
	}
	return 0
}

// spare returns how many calls may start.
func (h *Holder) spare() int { return h.idle() - h.surplus() }

// spareBeside is spare for calls that keep a fraction of the slots free. Each needs a slot that was
// granted for it: a slot in hand may be one that a call of another process was to find.
func (h *Holder) spareBeside(headroom float64) int {
	if headroom > 0 && key.Now()-h.low.at > key.MinReplyAge {
		return 0
	} else if headroom > 0 {
		return min(h.low.granted, h.spare())
	}
	return h.spare()
}

// demand returns the demand of calls that keep a fraction of the slots free.
func (h *Holder) demand(headroom float64) *demand {
	if headroom > 0 {
		return &h.low
	}
	return &h.plain
}

// coming returns how many slots are still to be asked for that calls which wait may count on: those
// that were free at the last answer. So a booking and its ask leave together, unless the booking
// needs no request, or another limit may refuse it.
func (h *Holder) coming(b *Request) int {
	if t := key.Now(); h == nil || !b.Waits || b.Headroom > 0 || h.full || h.asking || h.last.Other || h.hooks.Known() || h.plain.again > t || h.pause > t {
		return 0
	}
	return max(0, h.last.Free)
}

// count notes the slots of other processes by the limit of the reply: the next may be another.
func (h *Holder) count(r *key.Reply) {
	h.last.Free, h.last.Others, h.last.Largest = r.Allotment.Free, r.Allotment.Others, r.Allotment.Largest
	h.others = max(0, int(r.Force.Law[0].Capacity)-h.last.Free-h.last.Held)
}

// want notes how many calls have found no slot.
func (h *Holder) want(n int, headroom float64) {
	d := h.demand(headroom)
	d.calls, d.looked, d.headroom = max(d.calls, n), key.Now(), headroom
}

// Forgo notes that no call waits for the bucket any more.
func (h *Holder) Forgo() {
	h.of.mu.Lock()
	h.plain.calls, h.low.calls = 0, 0
	h.plan()
	h.of.mu.Unlock()
}

// freed notes that calls have ended, or were not sent. If refused is true, the next call may come
// soon.
func (h *Holder) freed(refused bool) {
	if h.idleFrom = key.Now(); refused || !h.last.Other {
		h.idleFrom += idleFor
	}
	if !refused {
		h.low.again = key.Never // there is a slot to return
	}
	h.plan()
}

// plan asks if it is time to, or sets the timer for then.
func (h *Holder) plan() {
	if h.asking {
		return
	}
	t, at := key.Now(), key.Forever
	for _, d := range []*demand{&h.plain, &h.low} {
		if t-d.looked > wantedFor {
			d.calls = 0
		}
	}
	need := h.plain.calls + h.waiters
	if need > h.spare() {
		at = h.plain.again
	} else if need == 0 && h.low.calls > 0 && h.spareBeside(h.low.headroom) == 0 {
		at = h.low.again
	}
	if h.idle() > need {
		at = min(at, h.idleFrom)
	}
	if h.surplus() > 0 || h.waits && h.plain.calls == 0 || h.due {
		at = t
	}
	if h.have > 0 {
		at = min(at, h.sent.Sub(key.Start)+h.of.limit.Load().Lease/6)
	}
	if at = max(at, h.pause); h.waiters > 0 && h.waiters > h.spare() {
		at = h.plain.again // the caller is to learn why it fails
	}
	switch {
	case at <= t:
		h.asking = true
		go h.ask()
	case at == key.Forever: // if the timer is set, it plans again
	case h.timer == nil:
		h.timer = time.AfterFunc(at-t, h.wake)
	default:
		h.timer.Reset(at - t)
	}
}

func (h *Holder) wake() {
	h.of.mu.Lock()
	h.plan()
	h.of.mu.Unlock()
}

// ask reports to the store what the bucket keeps, and takes what it grants.
func (h *Holder) ask() {
	h.of.mu.Lock()
	h.due = false
	back := h.surplus()
	need := h.plain.calls + h.waiters
	if unused := h.idle() - need; unused > back && key.Now() >= h.idleFrom {
		back = unused
	}
	d, want := &h.plain, max(0, need-h.spare())
	if need == 0 && h.low.calls > 0 {
		d, back, want = &h.low, h.idle(), h.low.calls
	}
	h.have -= back // before the ask leaves
	h.low.granted = 0
	s := key.Step{Op: store.Op{Action: store.Allot, Ask: store.Ask{
		ID: h.id, Keep: h.have, Want: want, Stays: h.plain.calls > 0, Known: !h.lapsed(), Lease: h.of.limit.Load().Lease, Headroom: d.headroom,
	}}}
	h.of.mu.Unlock()
	sent, r := time.Now(), key.Reply{}
	err := h.do(context.Background(), "ask for a slot", &s, &r)
	h.of.mu.Lock()
	h.asking, h.err = false, err
	t, changed := key.Now(), false
	if err != nil {
		h.tries = min(max(2*h.tries, firstTry), lastTry)
		h.pause = t + h.tries
	} else {
		got := r.Allotment.Held - s.Ask.Keep
		h.sent, h.last, h.waits, h.tries = sent, r.Allotment, s.Ask.Stays && got < s.Ask.Want, 0
		h.count(&r)
		changed = h.learn()
		if got > 0 {
			h.have, h.granted, h.idleFrom, changed = h.have+got, t, t+idleFor, true
			d.calls, d.granted, d.at = max(0, d.calls-got), got, t
		}
		if d.again = key.Never; got < s.Ask.Want {
			d.again = t + time.Duration(float64(h.last.Again)*(0.9+0.2*rand.Float64()))
		}
	}
	close(h.answered)
	h.answered, h.waiters = make(chan struct{}), 0
	h.plan()
	h.of.mu.Unlock()
	if changed {
		h.hooks.Changed()
	}
}

// Wait waits until there is a slot or an answer that grants none. To an impatient call it returns
// why it has no slot, or when it may ask again.
func (h *Holder) Wait(ctx context.Context, b *Request) (again time.Duration, err error) {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	for h.spareBeside(b.Headroom) == 0 && h.coming(b) == 0 {
		if !h.asking {
			again = h.demand(b.Headroom).again - key.Now()
			if b.Waits && (max(again, h.pause-key.Now()) > 0 || b.Headroom > 0 && h.plain.calls+h.waiters > 0) {
				return 0, nil // it learns of a slot
			} else if again > 0 {
				return again, nil
			}
		}
		if b.Waits {
			h.want(b.Calls, b.Headroom)
		} else {
			h.waiters++
		}
		h.plan()
		err = h.next(ctx)
		if err = cmp.Or(err, h.err); err != nil && b.Waits {
			return 0, nil // the request reports it, with what else it has to
		} else if err != nil {
			return 0, err
		}
	}
	h.idleFrom = max(h.idleFrom, key.Now()+idleFor) // or an ask could return the slot before the call takes it
	return 0, nil
}

// next waits for the next answer without the lock, or returns the error of ctx.
func (h *Holder) next(ctx context.Context) error {
	answered := h.answered
	h.of.mu.Unlock()
	defer h.of.mu.Lock()
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// arrive waits for the slots that bookings have counted on, and returns how many are missing.
func (h *Holder) arrive(ctx context.Context) int {
	for h.of.used > h.have && h.asking && ctx.Err() == nil {
		_ = h.next(ctx)
	}
	return max(0, h.of.used-h.have)
}

// Look learns how many slots are in use.
func (h *Holder) Look(ctx context.Context) error {
	var r key.Reply
	err := h.do(ctx, "look", &key.Step{Op: store.Op{Action: store.Allot, Ask: store.Ask{ID: h.id, Looks: true, Lease: h.of.limit.Load().Lease}}}, &r)
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if err == nil {
		h.count(&r)
		h.learn()
	}
	return err
}

// Set puts another number of slots in force for all processes. If it is nil, that is the one that
// the bucket was made with.
func (h *Holder) Set(ctx context.Context, l *Limit) error {
	s := key.Step{Op: store.Op{Action: store.Replace}}
	if l != nil {
		s.Set = []store.Limit{leased(l)}
	}
	err := h.do(ctx, "set limits", &s, new(key.Reply))
	h.of.mu.Lock()
	if err == nil {
		h.learn()
		h.plain.again, h.due = key.Never, h.have > 0
		h.plan()
	}
	if h.asking { // so that this process knows how many calls there may be
		_ = h.next(ctx)
	}
	h.of.mu.Unlock()
	h.hooks.Changed()
	return err
}
