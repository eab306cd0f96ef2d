package outbound

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// refuge is a key of a [Fallback] while its store is away.
type refuge struct {
	Stored
	given     []Limit       // of the bucket that has asked last
	real, own []Limit       // those in force, as last used, and what is left of them
	since     time.Duration // when the store was found away, as of which it began full
	used      bool          // since the store was last charged
	spent     Cost
	at        time.Duration // when the last of it was
	refused   *Report       // the newest refusal of a call of the store
	told      *Report       // the one that the store knows of
	held      time.Duration // until when the note's hold was, as taken over
	charging  *charging     // nil: not tried
}

// charging is a try to charge the store.
type charging struct {
	done chan struct{}
	err  error // what the store has against the key, once done
}

// note is what a [Fallback] remembers of a key while its store is there: what is
// to go on without it.
type note struct {
	limits []Limit // that were set for all; nil: none were
	held   time.Duration
	speed  float64
	as     time.Duration // of when the speed is
}

// lives names the lives of refuges. No store's clock is so far back.
var lives atomic.Int64

// noVersion is the version of limits that no store has.
const noVersion = -1 << 62

// note remembers what the reply tells.
func (f *Fallback) note(key string, op *Op, r *Result) {
	set := !sameLimits(r.Limits, op.Limits)
	tells := r.State.Rem > 0 || r.State.Speed < 1 || set
	if f.fails() || !tells && !f.noted.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !tells {
		delete(f.notes, key)
		f.noted.Store(len(f.notes) > 0)
		return
	}
	if f.notes == nil {
		f.notes = make(map[string]note)
	}
	for old := range f.notes { // whichever: there are more than can be kept
		if len(f.notes) < maxRefuges {
			break
		}
		delete(f.notes, old)
	}
	t := now()
	n := note{held: later(t, max(0, r.State.Rem)), speed: r.State.Speed, as: t}
	if set {
		n.limits = r.Limits
	}
	f.notes[key] = n
	f.noted.Store(true)
}

// serve is Update without the store, which is away because of err. mu is held.
func (f *Fallback) serve(key string, op *Op, err error) (Result, error) {
	if f.fails() || op.Action == Resume || op.Action == Replace {
		return Result{}, err
	}
	k := f.keys[key]
	if k == nil {
		full := len(f.keys) >= maxRefuges
		if full && !f.Unlimited {
			return Result{}, err
		}
		if k = f.shelter(key); !full { // else it is for this call alone
			f.keys[key] = k
			f.settled()
		}
	}
	if k.since != f.since { // not charged in time: what others have spent meanwhile is not known
		k.since = f.since
		f.fill(k, f.since)
	}
	k.used = true
	op.again() // whatever the store has begun
	here := *op
	here.were, here.noted = nil, false
	here.Limits = f.share(k, key, op.Limits)
	here.Reports = k.hear(f, key, op.Reports)
	back := k.returned(&here)
	t := now()
	r := here.Apply(&k.Stored, t)
	r.Differ = false
	k.spend(&here, &r, back, t)
	if r.TooLarge && len(r.Charges) == 0 && !(share(&op.Costs[0], &k.real[r.Limit]) > k.real[r.Limit].Capacity) {
		return Result{}, err
	}
	// The shares of others are as if they were full.
	r.Limits = k.real
	for i := range k.real {
		l := &r.State.Level[i]
		l.Level = max(0, l.Level+k.real[i].Capacity-k.own[i].Capacity)
	}
	return r, nil
}

// shelter makes a refuge of a key, as of the time when the store was found away.
// mu is held.
func (f *Fallback) shelter(key string) *refuge {
	k := &refuge{Stored: Stored{State: leak.New(f.since), Limits: []Limit{}, Version: noVersion}, since: f.since}
	s := &k.State
	s.Born = -1<<62 + time.Duration(lives.Add(1))
	s.Skip, s.Epoch = s.At-s.Born, int64(s.Born)
	if n, ok := f.notes[key]; ok && n.speed < 1 {
		s.At, s.Speed = n.as, n.speed
		s.Advance(nil, max(f.since, n.as))
		s.Skip = s.At - s.Born
	}
	if f.keys == nil {
		f.keys = make(map[string]*refuge)
	}
	return k
}

// share returns what this worker may use of the limits in force. One that is new
// begins full, as of the time when the store was found away. mu is held.
func (f *Fallback) share(k *refuge, key string, limits []Limit) []Limit {
	k.given = limits
	if n := f.notes[key]; n.limits != nil {
		limits = n.limits
	}
	if k.own != nil && sameLimits(limits, k.real) {
		return k.own
	}
	k.real = limits
	k.own = append([]Limit(nil), limits...)
	for i := range k.own {
		l := &k.own[i]
		level := 0.0
		if f.Unlimited {
			l.Capacity, l.LeakRate = maxCapacity, maxLeakRate
		} else {
			l.Capacity = max(f.Share*l.Capacity, min(1, l.Capacity))
			l.LeakRate *= f.Share
			level = l.Capacity
		}
		if k.known(l) == nil {
			k.Others = append(k.Others, Other{Limit: *l, Level: leak.Level{Level: level}})
		}
	}
	return k.own
}

// fill brings what is left of the limits to the brim.
func (f *Fallback) fill(k *refuge, t time.Duration) {
	if !f.Unlimited {
		op := Op{Limits: k.own, Action: Meter, Costs: []Cost{{maxCapacity, maxCapacity, maxCapacity, maxCapacity}}}
		op.Apply(&k.Stored, t)
	}
}

// hear returns the reports as they count here. Refusals of calls of the store
// are news once for each of its episodes.
func (k *refuge) hear(f *Fallback, key string, reports []Report) []Report {
	var own []Report
	if n, ok := f.notes[key]; ok && n.held != k.held && n.held > now() {
		k.held = n.held
		own = append(own, Report{Kind: Held, Wait: n.held - now()})
	}
	own = append(own, reports...)
	for i := range own {
		r := &own[i]
		if r.Charge == nil || r.Charge.Born == k.State.Born {
			continue
		}
		switch {
		case r.Kind == Settled: // whatever the store has noted in it before it failed
			c := *r.Charge
			c.Settled = false
			r.Charge = &c
		case r.Kind == Refused && (k.refused == nil || r.Epoch > k.refused.Epoch):
			c, told := *r.Charge, *r
			told.Charge = &c
			k.refused = &told
			r.Epoch = k.State.Epoch
		}
	}
	return own
}

// returned is what the operation gives back of what was spent here.
func (k *refuge) returned(op *Op) (c Cost) {
	for _, back := range op.Charges {
		if back.Born == k.State.Born && !back.Settled {
			add(&c, k.own, &back.N, 1)
		}
	}
	return c
}

// spend counts what the operation has spent.
func (k *refuge) spend(op *Op, r *Result, back Cost, t time.Duration) {
	was := k.spent
	for i := range r.Charges {
		add(&k.spent, k.own, &r.Charges[i].N, 1)
	}
	if op.Action == Meter {
		for u, n := range op.Costs[0] {
			k.spent[u] += n
		}
	}
	for i := range op.Reports {
		s := &op.Reports[i]
		if s.Kind != Settled {
			continue
		}
		for u := range s.Used {
			over := s.Used[u] - s.Cost[u]
			if s.Charge.Born != k.State.Born {
				over = max(0, over)
			}
			k.spent[u] += over
		}
	}
	if op.Move != nil && len(r.Charges) > 0 { // booked again, for what it was
		add(&k.spent, k.own, &r.Charges[0].N, -1)
	}
	for u := range k.spent {
		k.spent[u] = max(0, k.spent[u]-back[u])
	}
	if k.spent != was {
		k.at = t
	}
}

// add adds what limits have taken to a cost, or takes it away.
func add(c *Cost, limits []Limit, n *leak.Units, sign float64) {
	var sum Cost
	for i := range limits {
		u := limits[i].Unit
		sum[u] = max(sum[u], n[i])
	}
	for u := range sum {
		c[u] += sign * sum[u]
	}
}

// owed is what the store is to be charged with at time t: of each limit no more
// than it holds, and nothing if it has had the time to drain since the last was
// spent. Less than that would be no gain: in the store, too, it has leaked.
func (k *refuge) owed(t time.Duration) (c Cost) {
	for i := range k.real {
		l := &k.real[i]
		if n := k.spent[l.Unit]; n > 0 && l.LeakRate*(t-k.at).Seconds() < l.Capacity {
			c[l.Unit] = max(c[l.Unit], min(n, l.Capacity))
		}
	}
	return c
}

// charge waits until the store is charged with what was spent under a key, or ctx
// ends. After that either the key is no refuge any more or the store is away, or
// it is what the store has against this key: then who comes next tries again.
func (f *Fallback) charge(ctx context.Context, key string, k *refuge) error {
	f.mu.Lock()
	if f.keys[key] != k || f.away {
		f.mu.Unlock()
		return nil
	}
	c := k.charging
	if c == nil {
		c = &charging{done: make(chan struct{})}
		k.charging = c
		go f.collect(key, k) // which does not end with whoever comes first
	}
	f.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return nil
	}
}

// collect charges the store with all that was spent under a key. If the store is
// away again meanwhile, more may be.
func (f *Fallback) collect(key string, k *refuge) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	for err == nil && !f.away && f.keys[key] == k {
		k.used = false
		spent, refused := k.spent, k.refused
		if op, ok := k.bill(now()); ok {
			f.mu.Unlock()
			err = f.pay(key, op)
			f.mu.Lock()
		}
		if err != nil {
			break
		}
		for u := range spent {
			k.spent[u] = max(0, k.spent[u]-spent[u])
		}
		k.told = refused
		if !f.away && !k.used {
			delete(f.keys, key)
		}
	}
	if !errors.Is(err, ErrAway) {
		k.charging.err = err
	}
	close(k.charging.done)
	k.charging = nil
	f.settled()
}

// pay is one trip of collect.
func (f *Fallback) pay(key string, op *Op) error {
	r, err := f.Store.Update(context.Background(), key, op)
	switch {
	case err == nil:
		f.note(key, op, &r)
	case errors.Is(err, ErrAway):
		f.leave(err)
	}
	return err
}

// bill is the operation that tells the store what has happened meanwhile.
func (k *refuge) bill(t time.Duration) (op *Op, ok bool) {
	op = &Op{Limits: k.given}
	var buf [maxLimits]leak.Limit
	s := k.State // the hold as of now; levels do not matter
	s.Advance(shape(&buf, k.Limits), t)
	held := max(0, s.Rem)
	if r := k.refused; r != nil && r != k.told {
		told := *r
		told.Wait = max(1, held) // that much of it is left; 0 would say that nobody knows
		op.Reports = append(op.Reports, told)
	} else if held > 0 {
		op.Reports = append(op.Reports, Report{Kind: Held, Wait: held})
	}
	if c := k.owed(t); c != (Cost{}) {
		op.Action, op.Costs = Meter, []Cost{c}
	}
	return op, op.Action == Meter || len(op.Reports) > 0
}
