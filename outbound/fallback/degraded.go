package fallback

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// unlimited is the largest capacity, and the highest rate, that a limit may have.
const unlimited = 1e12

// noVersion is a version of limits that no store has.
const noVersion = -1 << 62

// births tells the lives of degraded keys apart: each is born at a time of its own, so far
// back that no store's clock shows it.
var births atomic.Int64

// degradedKey is a key while the store is away: a bucket of this process.
type degradedKey struct {
	stored    leak.Stored
	debts     []*debt       // one for each set of limits by which calls count, at most leak.Max
	latest    *debt         // that of the latest call
	since     time.Duration // when the outage began in which the key was made
	heldUntil time.Duration // the end of the last hold that was taken over from lastSeen
	refused   *refusal      // the newest refusal of a call that the store admitted
	reported  *refusal      // the one of these that the store was last told of
	used      bool          // a call came since the last try to charge the store
	charging  *charging     // the try that is under way; nil: none is
}

// refusal is what a call that was refused says, and the limits by which it was charged.
type refusal struct {
	leak.Report
	limits []leak.Limit
}

// serveLocked is Update without the store, which is away because of cause.
func (s *Store) serveLocked(key string, op *leak.Op, cause error) (leak.Reply, error) {
	if s.fails() || op.Action == leak.Resume || op.Action == leak.Replace {
		return leak.Reply{}, cause
	}
	if seen := s.seen[key]; seen.limits != nil && seen.stamp != op.Stamp {
		return leak.Reply{Stale: true, Limits: seen.limits, Stamp: seen.stamp, Version: noVersion}, nil
	}
	t, date := now(), unix()
	if r := timely(op, date); r.Stale { // the bucket took the store's time of day for ours
		return r, nil
	}
	k := s.degradeLocked(key)
	if k == nil {
		return leak.Reply{}, cause
	}
	d := s.countBy(k, key, op)
	k.used = true
	here := *op
	here.Limits, here.Stamp = d.share, 0
	here.Reports = s.localReportsLocked(k, key, op)
	r := here.ApplyAt(&k.stored, t, date)
	r.Differ, r.Stamp = false, op.Stamp
	d.spend(&here, &r, k.stored.State.Born, t)
	if i := r.Limit; r.Refused && len(r.Charges) == 0 && i >= 0 && op.Costs[0][i] > d.share[i].Capacity {
		return leak.Reply{}, cause // no wait makes room for it in the share
	}
	if !s.Unlimited {
		r.Share = d.share
	}
	// The bucket sees levels of the whole limit, in which the shares of others are full.
	for i := range d.limits {
		l := &r.State.Level[i]
		l.Level = max(0, l.Level+d.limits[i].Capacity-d.share[i].Capacity)
	}
	return r, nil
}

// degradeLocked returns the degraded key of a key. If there are too many, it is nil, or,
// with Unlimited, one for this call alone.
func (s *Store) degradeLocked(key string) *degradedKey {
	k := s.keys[key]
	if k != nil {
		return k
	}
	full := len(s.keys) >= maxKeys
	if full && !s.Unlimited {
		return nil
	}
	k = s.newKeyLocked(key)
	if !full {
		if s.keys == nil {
			s.keys = make(map[string]*degradedKey)
		}
		s.keys[key] = k
	}
	return k
}

// newKeyLocked makes a degraded key as of the beginning of the outage. A slow-down that
// was in force goes on.
func (s *Store) newKeyLocked(key string) *degradedKey {
	since := s.breaker.since
	k := &degradedKey{
		stored: leak.Stored{State: leak.New(since), Limits: []leak.Limit{}, Version: noVersion},
		since:  since,
	}
	state := &k.stored.State
	state.Born = -1<<62 + time.Duration(births.Add(1))
	state.Skip, state.Epoch = state.At-state.Born, int64(state.Born)
	if seen, ok := s.seen[key]; ok && seen.speed < 1 {
		state.At, state.Speed = seen.at, seen.speed
		state.Advance(nil, max(since, seen.at))
		state.Skip = state.At - state.Born
	}
	return k
}

// timely returns a reply that is Untimely if the periods of op are not those of this process's
// time of day, which is date.
func timely(op *leak.Op, date time.Duration) leak.Reply {
	if !dated(op.Limits) {
		return leak.Reply{}
	}
	look := leak.Op{Limits: op.Limits, Periods: op.Periods}
	return look.ApplyAt(new(leak.Stored), now(), date)
}

// peek looks at the key by the limits of a debt. It changes nothing.
func (k *degradedKey) peek(d *debt) leak.Reply {
	op := leak.Op{Limits: d.share, Periods: d.periods}
	return op.ApplyAt(&k.stored, now(), unix())
}

// countBy has a key count by the limits of a call, and computes this worker's share of
// them. A limit that is new to the key begins full, so that the switch causes no burst.
func (s *Store) countBy(k *degradedKey, key string, op *leak.Op) *debt {
	d := k.debtOf(op)
	if k.latest != nil && k.latest.stamp != d.stamp {
		k.stored.Version += 2 // other limits were set: nothing comes back to calls from before
	}
	if d != k.latest || d.share == nil {
		k.latest = d
		d.share = slices.Clone(d.limits)
		for i := range d.share {
			l := &d.share[i]
			s.shrink(l)
			if !k.stored.Knows(l) {
				k.begin(d, i, s.level(key, l))
			}
		}
	}
	if d.since != s.breaker.since {
		d.since = s.breaker.since
		if k.since != d.since && !s.Unlimited {
			s.fill(k, d, key)
		}
	}
	return d
}

// fill fills a share to the brim, because its key was made in an outage from before: the last
// return has not charged all of it, and other workers may have used the store since. All of
// a window counts from the switch on. A calendar it fills to what was used when the store last
// told.
func (s *Store) fill(k *degradedKey, d *debt, key string) {
	op := leak.Op{Limits: d.share, Periods: d.periods, Action: leak.Meter, Costs: make([]leak.Units, 1)}
	for i := range d.share {
		l := &d.share[i]
		op.Costs[0][i] = l.Capacity
		if l.Kind.Calendar() {
			part, _ := s.used(key, l)
			units, _ := k.inPeriod(l)
			op.Costs[0][i] = max(0, part*l.Capacity-units)
		}
	}
	op.ApplyAt(&k.stored, max(d.since, k.stored.State.At), unix())
	k.prolong(d)
}

// localReportsLocked returns the reports of an operation as they count without the store, a hold of lastSeen
// first. Of the refusals of calls that the store admitted, the first of each of the
// store's epochs counts.
func (s *Store) localReportsLocked(k *degradedKey, key string, op *leak.Op) []leak.Report {
	var local []leak.Report
	if seen, ok := s.seen[key]; ok && seen.heldUntil != k.heldUntil && seen.heldUntil > now() {
		k.heldUntil = seen.heldUntil
		local = append(local, leak.Report{Kind: leak.Held, Wait: seen.heldUntil - now()})
	}
	local = append(local, op.Reports...)
	for i := range local {
		r := &local[i]
		if r.Kind != leak.Refused || r.Charge == nil || r.Charge.Born == k.stored.State.Born {
			continue
		}
		if k.refused == nil || r.Epoch > k.refused.Epoch {
			charge := *r.Charge
			k.refused = &refusal{*r, op.Limits}
			k.refused.Charge = &charge
			r.Epoch = k.stored.State.Epoch
		}
	}
	return local
}
