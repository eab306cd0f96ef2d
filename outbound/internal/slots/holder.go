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
	again    time.Duration // calls that wait do not ask before
	pause    time.Duration // no ask leaves before
	tries    time.Duration // the last pause
	wants    int           // slots that calls which wait have not found
	wanted   time.Duration // when the last of them looked for one
	waiters  int           // calls that wait for the answer only
	low      low           // calls that keep slots free
	waits    bool          // the store knows that calls wait
	asking   bool
	due      bool          // ask now
	full     bool          // another limit has refused the last booking
	err      error         // of the last ask
	answered chan struct{} // closed after the next answer
	timer    *time.Timer
}

// low are calls that keep a part of the slots free. Each needs a slot that was granted for it: a
// slot in hand may be one that a call of another process was to find.
type low struct {
	headroom float64       // the fraction that the last of them keeps free
	wants    int           // slots that they have not found
	wanted   time.Duration // when the last of them looked for one
	granted  int           // slots in hand that the last answer has granted for them
	at       time.Duration // when
	again    time.Duration // they do not ask before
}

// Hooks are what slots in a store need of their bucket.
type Hooks struct {
	Changed func()                           // there may be slots
	Known   func() bool                      // a booking on the bucket's key needs no request now
	Failed  func(op string, err error) error // returns an error for the bucket's callers
}

// Share has all processes share, in a store, the slots that Init has set up.
func (p *Slots) Share(in store.Store, bucket string, l *Limit, hooks Hooks) {
	h := &Holder{of: p, id: rand.Uint64() | 1, hooks: hooks, answered: make(chan struct{}), granted: key.Never, idleFrom: key.Never, again: key.Never, pause: key.Never, wanted: key.Never, low: low{wanted: key.Never, again: key.Never, at: key.Never}}
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

// spareBeside is spare for calls that keep a fraction of the slots free.
func (h *Holder) spareBeside(headroom float64) int {
	if headroom > 0 && key.Now()-h.low.at > key.MinReplyAge {
		return 0
	} else if headroom > 0 {
		return min(h.low.granted, h.spare())
	}
	return h.spare()
}

// coming returns how many slots are still to be asked for that calls which wait may count on: those
// that were free at the last answer. So a booking and its ask leave together, unless the booking
// needs no request, or another limit may refuse it.
func (h *Holder) coming(b *Request) int {
	if t := key.Now(); !b.Waits || b.Headroom > 0 || h.full || h.asking || h.last.Other || h.hooks.Known() || h.again > t || h.pause > t {
		return 0
	}
	return max(0, h.last.Free)
}

// total returns the slots that other processes hold and those in use here, as far as is known.
func (h *Holder) total() int { return h.of.used + h.others }

// count notes the slots of other processes by the limit of the reply: the next may be another.
func (h *Holder) count(r *key.Reply) {
	h.last.Free, h.last.Others, h.last.Largest = r.Allotment.Free, r.Allotment.Others, r.Allotment.Largest
	h.others = max(0, int(r.Force.Law[0].Capacity)-h.last.Free-h.last.Held)
}

// lacks notes how many calls of a booking have found no slot.
func (h *Holder) lacks(n int, headroom float64) {
	h.want(n, headroom)
	h.plan()
}

func (h *Holder) want(n int, headroom float64) {
	if headroom > 0 {
		h.low.wants, h.low.wanted, h.low.headroom = max(h.low.wants, n), key.Now(), headroom
	} else {
		h.wants, h.wanted = max(h.wants, n), key.Now()
	}
}

// Forgo notes that no call waits for the bucket any more.
func (h *Holder) Forgo() {
	h.of.mu.Lock()
	h.wants, h.low.wants = 0, 0
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
	if t-h.wanted > wantedFor {
		h.wants = 0
	}
	if t-h.low.wanted > wantedFor {
		h.low.wants = 0
	}
	need := h.wants + h.waiters
	if need > h.spare() {
		at = h.again
	} else if need == 0 && h.low.wants > 0 && h.spareBeside(h.low.headroom) == 0 {
		at = h.low.again
	}
	if h.idle() > need {
		at = min(at, h.idleFrom)
	}
	if h.surplus() > 0 || h.waits && h.wants == 0 || h.due {
		at = t
	}
	if h.have > 0 {
		at = min(at, h.sent.Sub(key.Start)+h.of.limit.Load().Lease/6)
	}
	if at = max(at, h.pause); h.waiters > 0 && h.waiters > h.spare() {
		at = h.again // the caller is to learn why it fails
	}
	switch {
	case at <= t:
		h.asking = true
		go h.ask()
	case at == key.Forever:
		if h.timer != nil {
			h.timer.Stop()
		}
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
	if unused := h.idle() - h.wants - h.waiters; unused > back && key.Now() >= h.idleFrom {
		back = unused
	}
	want, headroom := max(0, h.wants+h.waiters-h.spare()), 0.
	if h.wants+h.waiters == 0 && h.low.wants > 0 {
		back, want, headroom = h.idle(), h.low.wants, h.low.headroom
	}
	h.have -= back // before the ask leaves
	h.low.granted = 0
	s := key.Step{Op: store.Op{Action: store.Allot, Ask: store.Ask{
		ID: h.id, Keep: h.have, Want: want, Stays: h.wants > 0, Known: !h.lapsed(), Lease: h.of.limit.Load().Lease, Headroom: headroom,
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
			if h.have, h.granted, h.idleFrom, changed = h.have+got, t, t+idleFor, true; headroom > 0 {
				h.low.granted, h.low.at, h.low.wants = got, t, max(0, h.low.wants-got)
			} else {
				h.wants = max(0, h.wants-got)
			}
		}
		again := time.Duration(key.Never)
		if got < s.Ask.Want {
			again = t + time.Duration(float64(h.last.Again)*(0.9+0.2*rand.Float64()))
		}
		if headroom > 0 {
			h.low.again = again
		} else {
			h.again = again
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
			if again = h.again - key.Now(); b.Headroom > 0 {
				again = h.low.again - key.Now()
			}
			if b.Waits && (max(again, h.pause-key.Now()) > 0 || b.Headroom > 0 && h.wants+h.waiters > 0) {
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
		answered := h.answered
		h.of.mu.Unlock()
		select {
		case <-answered:
		case <-ctx.Done():
			err = ctx.Err()
		}
		h.of.mu.Lock()
		if !b.Waits && answered == h.answered { // its ctx ended before the answer came
			h.waiters--
		}
		if err = cmp.Or(err, h.err); err != nil && b.Waits {
			return 0, nil // the request reports it, with what else it has to
		} else if err != nil {
			return 0, err
		}
	}
	h.idleFrom = max(h.idleFrom, key.Now()+idleFor) // or an ask could return the slot before the call takes it
	return 0, nil
}

// arrive waits for the slots that bookings have counted on, and returns how many are missing.
func (h *Holder) arrive(ctx context.Context) int {
	for h.of.used > h.have && h.asking && ctx.Err() == nil {
		answered := h.answered
		h.of.mu.Unlock()
		select {
		case <-answered:
		case <-ctx.Done():
		}
		h.of.mu.Lock()
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
		h.again, h.due = key.Never, h.have > 0
		h.plan()
	}
	answered := h.answered
	due := h.asking
	h.of.mu.Unlock()
	if due { // so that this process knows how many calls there may be
		select {
		case <-answered:
		case <-ctx.Done():
		}
	}
	h.hooks.Changed()
	return err
}
