package fallback

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// refuge is a key of a [Store] while its store is away.
type refuge struct {
	leak.Stored
	real, own []leak.Limit  // those that who has asked last counts by, and what is left of them
	stamp     int64         // of real
	since     time.Duration // when the store was found away, as of which it began full
	used      bool          // since the store was last charged
	spent     spent
	at        time.Duration // when the last of it was
	refused   *leak.Report  // the newest refusal of a call of the store
	told      *leak.Report  // the one that the store knows of
	held      time.Duration // until when the note's hold was, as taken over
	charging  *charging     // nil: not tried
}

// spent is what was spent of each unit.
type spent map[int]float64

// add adds what limits have taken, or takes it away.
func (s spent) add(limits []leak.Limit, n *leak.Units, sign float64) {
	for i := range limits {
		unit, first := limits[i].Unit, true
		for j := range limits[:i] {
			first = first && limits[j].Unit != unit
		}
		if !first {
			continue
		}
		most := 0.
		for j := range limits {
			if limits[j].Unit == unit {
				most = max(most, n[j])
			}
		}
		s[unit] += sign * most
	}
}

// charging is a try to charge the store.
type charging struct {
	done chan struct{}
	err  error // what the store has against the key, once done
}

// note is what a [Store] remembers of a key while its store is there: what is
// to go on without it.
type note struct {
	limits []leak.Limit // that were set for all; nil: none were
	stamp  int64
	held   time.Duration
	speed  float64
	as     time.Duration // of when the speed is
}

// lives names the lives of refuges. No store's clock is so far back.
var lives atomic.Int64

// unlimited is the largest capacity, and the highest rate, that a limit may have.
const unlimited = 1e12

// mostStale is how often the store may answer that other limits are in force before a
// charge is given up.
const mostStale = 8

var errStale = errors.New("the limits change faster than they can be heard of")

// noVersion is the version of limits that no store has.
const noVersion = -1 << 62

// note remembers what the reply tells.
func (f *Store) note(key string, op *leak.Op, r *leak.Reply) {
	if r.Stale {
		return
	}
	set := r.Stamp != 0
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
		n.limits, n.stamp = op.Limits, r.Stamp
		if op.Action == leak.Replace {
			n.limits = op.Replacement
		}
	}
	f.notes[key] = n
	f.noted.Store(true)
}

// serve is Update without the store, which is away because of err. mu is held.
func (f *Store) serve(key string, op *leak.Op, err error) (leak.Reply, error) {
	if f.fails() || op.Action == leak.Resume || op.Action == leak.Replace {
		return leak.Reply{}, err
	}
	if n := f.notes[key]; n.limits != nil && n.stamp != op.Stamp {
		return leak.Reply{Stale: true, Limits: n.limits, Stamp: n.stamp, Version: noVersion}, nil
	}
	k := f.keys[key]
	if k == nil {
		full := len(f.keys) >= maxRefuges
		if full && !f.Unlimited {
			return leak.Reply{}, err
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
	here := *op
	here.Limits, here.Stamp = f.share(k, op), 0
	here.Reports = k.hear(f, key, op.Reports)
	back := k.returned(&here)
	t := now()
	r := here.Apply(&k.Stored, t)
	r.Differ, r.Stamp = false, op.Stamp
	k.spend(&here, &r, back, t)
	if i := r.Limit; r.Refused && len(r.Charges) == 0 && i >= 0 && op.Costs[0][i] > k.own[i].Capacity {
		return leak.Reply{}, err
	}
	// The shares of others are as if they were full.
	for i := range k.real {
		l := &r.State.Level[i]
		l.Level = max(0, l.Level+k.real[i].Capacity-k.own[i].Capacity)
	}
	return r, nil
}

// shelter makes a refuge of a key, as of the time when the store was found away.
// mu is held.
func (f *Store) shelter(key string) *refuge {
	k := &refuge{Stored: leak.Stored{State: leak.New(f.since), Limits: []leak.Limit{}, Version: noVersion}, since: f.since, spent: spent{}}
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
func (f *Store) share(k *refuge, op *leak.Op) []leak.Limit {
	k.stamp = op.Stamp
	if k.own != nil && leak.Equal(op.Limits, k.real) {
		return k.own
	}
	k.real = op.Limits
	k.own = append([]leak.Limit(nil), op.Limits...)
	for i := range k.own {
		l := &k.own[i]
		level := 0.0
		if f.Unlimited {
			l.Capacity, l.Rate = unlimited, unlimited
		} else {
			l.Capacity = max(f.Share*l.Capacity, min(1, l.Capacity))
			l.Rate *= f.Share
			level = l.Capacity
		}
		if !k.Knows(l) {
			k.Others = append(k.Others, leak.Other{Limit: *l, Level: leak.Level{Level: level}})
		}
	}
	return k.own
}

// fill brings what is left of the limits to the brim.
func (f *Store) fill(k *refuge, t time.Duration) {
	if !f.Unlimited {
		op := leak.Op{Limits: k.own, Action: leak.Meter, Costs: make([]leak.Units, 1)}
		for i := range k.own {
			op.Costs[0][i] = k.own[i].Capacity
		}
		op.Apply(&k.Stored, t)
	}
}

// hear returns the reports as they count here. Refusals of calls of the store
// are news once for each of its episodes.
func (k *refuge) hear(f *Store, key string, reports []leak.Report) []leak.Report {
	var own []leak.Report
	if n, ok := f.notes[key]; ok && n.held != k.held && n.held > now() {
		k.held = n.held
		own = append(own, leak.Report{Kind: leak.Held, Wait: n.held - now()})
	}
	own = append(own, reports...)
	for i := range own {
		r := &own[i]
		if r.Charge != nil && r.Charge.Born != k.State.Born && r.Kind == leak.Refused && (k.refused == nil || r.Epoch > k.refused.Epoch) {
			c, told := *r.Charge, *r
			told.Charge = &c
			k.refused = &told
			r.Epoch = k.State.Epoch
		}
	}
	return own
}

// returned is what the operation gives back of what was spent here.
func (k *refuge) returned(op *leak.Op) spent {
	back := spent{}
	for i := range op.Back {
		if c := &op.Back[i]; c.Born == k.State.Born && !c.Settled {
			back.add(k.own, &c.N, 1)
		}
	}
	return back
}

// spend counts what the operation has spent.
func (k *refuge) spend(op *leak.Op, r *leak.Reply, back spent, t time.Duration) {
	was := maps.Clone(k.spent)
	for i := range r.Charges {
		k.spent.add(k.own, &r.Charges[i].N, 1)
	}
	if op.Action == leak.Meter {
		k.spent.add(k.own, &op.Costs[0], 1)
	}
	for i := range op.Reports {
		s := &op.Reports[i]
		if s.Kind != leak.Settled || s.Charge.Settled {
			continue
		}
		var more, less leak.Units
		for j := range k.own {
			over := s.Used[j] - s.Charge.N[j]
			more[j], less[j] = max(0, over), max(0, -over)
		}
		k.spent.add(k.own, &more, 1)
		if s.Charge.Born == k.State.Born {
			k.spent.add(k.own, &less, -1)
		}
	}
	if op.Move != nil && len(r.Charges) > 0 { // booked again, for what it was
		k.spent.add(k.own, &r.Charges[0].N, -1)
	}
	for unit, n := range k.spent {
		k.spent[unit] = max(0, n-back[unit])
	}
	if !maps.Equal(k.spent, was) {
		k.at = t
	}
}

// owed is what the store is to be charged with at time t: of each limit no more
// than it holds, and nothing if it has had the time to drain since the last was
// spent. Less than that would be no gain: in the store, too, it has leaked.
func (k *refuge) owed(t time.Duration) (n leak.Units) {
	for i := range k.real {
		l := &k.real[i]
		if spent := k.spent[l.Unit]; spent > 0 && l.Rate*(t-k.at).Seconds() < l.Capacity {
			n[i] = min(spent, l.Capacity)
		}
	}
	return n
}

// charge waits until the store is charged with what was spent under a key, or ctx
// ends. After that either the key is no refuge any more or the store is away, or
// it is what the store has against this key: then who comes next tries again.
func (f *Store) charge(ctx context.Context, key string, k *refuge) error {
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
func (f *Store) collect(key string, k *refuge) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	for stale := 0; err == nil && !f.away && f.keys[key] == k; {
		k.used = false
		spent, refused := maps.Clone(k.spent), k.refused
		if op, ok := k.bill(now()); ok {
			f.mu.Unlock()
			var r leak.Reply
			r, err = f.pay(key, op)
			f.mu.Lock()
			if err == nil && r.Stale { // others were set meanwhile, or are no longer
				if k.stamp = r.Stamp; len(r.Limits) > 0 {
					k.real, k.own = r.Limits, nil
				}
				if stale++; stale > mostStale {
					err = errStale
				}
				continue
			}
		}
		if err != nil {
			break
		}
		for unit, n := range spent {
			k.spent[unit] = max(0, k.spent[unit]-n)
		}
		k.told = refused
		if !f.away && !k.used {
			delete(f.keys, key)
		}
	}
	if !errors.Is(err, leak.ErrAway) {
		k.charging.err = err
	}
	close(k.charging.done)
	k.charging = nil
	f.settled()
}

// pay is one trip of collect.
func (f *Store) pay(key string, op *leak.Op) (r leak.Reply, err error) {
	r, err = f.Store.Update(context.Background(), key, op)
	switch {
	case err == nil:
		f.note(key, op, &r)
	case errors.Is(err, leak.ErrAway):
		f.leave(err)
	}
	return r, err
}

// bill is the operation that tells the store what has happened meanwhile.
func (k *refuge) bill(t time.Duration) (op *leak.Op, ok bool) {
	op = &leak.Op{Limits: k.real, Stamp: k.stamp}
	s := k.State // the hold as of now; levels do not matter
	s.Advance(k.own, t)
	held := max(0, s.Rem)
	if r := k.refused; r != nil && r != k.told {
		told := *r
		told.Wait = max(1, held) // that much of it is left; 0 would say that nobody knows
		op.Reports = append(op.Reports, told)
	} else if held > 0 {
		op.Reports = append(op.Reports, leak.Report{Kind: leak.Held, Wait: held})
	}
	if n := k.owed(t); n != (leak.Units{}) {
		op.Action, op.Costs = leak.Meter, []leak.Units{n}
	}
	return op, op.Action == leak.Meter || len(op.Reports) > 0
}
