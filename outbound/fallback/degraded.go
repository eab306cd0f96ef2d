package fallback

import (
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
	limits    []leak.Limit  // the latest call counts by these; nil: by a bucket's own, not known yet
	periods   []leak.Period // of the latest call that has told them for limits
	stamp     int64         // of limits
	share     []leak.Limit  // what this worker may use of them
	since     time.Duration // when the outage began, as of which the bucket began full
	heldUntil time.Duration // the end of the last hold that was taken over from lastSeen
	refused   *leak.Report  // the newest refusal of a call that the store admitted
	reported  *leak.Report  // the one of these that the store was last told of
	spent     perUnit       // what the store is not charged with yet
	spentAt   time.Duration // when spent last changed
	used      bool          // a call came since the last try to charge the store
	charging  *charging     // the try that is under way; nil: none is
}

// serveLocked is Update without the store, which is away because of cause.
func (s *Store) serveLocked(key string, op *leak.Op, cause error) (leak.Reply, error) {
	if s.fails() || op.Action == leak.Resume || op.Action == leak.Replace {
		return leak.Reply{}, cause
	}
	if seen := s.seen[key]; seen.limits != nil && seen.stamp != op.Stamp {
		return leak.Reply{Stale: true, Limits: seen.limits, Stamp: seen.stamp, Version: noVersion}, nil
	}
	if r := timely(op); r.Stale { // the bucket took the store's time of day for ours
		return r, nil
	}
	k := s.degradeLocked(key)
	if k == nil {
		return leak.Reply{}, cause
	}
	s.countBy(k, key, op)
	if k.since != s.breaker.since {
		// The last return has not charged it. Other workers may have used the store since.
		k.since = s.breaker.since
		s.fill(k, key)
	}
	k.used = true
	here := *op
	here.Limits, here.Stamp = k.share, 0
	here.Reports = s.localReportsLocked(k, key, op.Reports)
	t := now()
	r := here.ApplyAt(&k.stored, t, unix())
	r.Differ, r.Stamp = false, op.Stamp
	k.spend(&here, &r, t)
	if i := r.Limit; r.Refused && len(r.Charges) == 0 && i >= 0 && op.Costs[0][i] > k.share[i].Capacity {
		return leak.Reply{}, cause // no wait makes room for it in the share
	}
	// The bucket sees levels of the whole limit, in which the shares of others are full.
	for i := range k.limits {
		l := &r.State.Level[i]
		l.Level = max(0, l.Level+k.limits[i].Capacity-k.share[i].Capacity)
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
// time of day.
func timely(op *leak.Op) leak.Reply {
	if !dated(op.Limits) {
		return leak.Reply{}
	}
	look := leak.Op{Limits: op.Limits, Periods: op.Periods}
	return look.ApplyAt(new(leak.Stored), now(), unix())
}

// peek looks at the key. It changes nothing.
func (k *degradedKey) peek() leak.Reply {
	op := leak.Op{Limits: k.share, Periods: k.periods}
	return op.ApplyAt(&k.stored, now(), unix())
}

// countBy has a key count by the limits of a call, and computes this worker's share of
// them. A limit that is new to the key begins full, so that the switch causes no burst.
func (s *Store) countBy(k *degradedKey, key string, op *leak.Op) {
	k.periods = op.Periods
	if k.share != nil && k.stamp != op.Stamp {
		k.stored.Version += 2 // other limits were set: nothing comes back to calls from before
	}
	k.stamp = op.Stamp
	if k.share != nil && leak.Equal(op.Limits, k.limits) {
		return
	}
	k.limits = op.Limits
	k.share = append([]leak.Limit(nil), op.Limits...)
	for i := range k.share {
		l := &k.share[i]
		s.shrink(l)
		if !k.stored.Knows(l) {
			k.begin(i, s.level(key, l))
		}
	}
}

// fill fills every limit that a key knows to the brim, as of the beginning of the outage.
func (s *Store) fill(k *degradedKey, key string) {
	if s.Unlimited {
		return
	}
	op := leak.Op{Limits: k.share, Periods: k.periods, Action: leak.Meter, Costs: make([]leak.Units, 1)}
	for i := range k.share {
		op.Costs[0][i] = s.level(key, &k.share[i])
	}
	op.ApplyAt(&k.stored, k.since, unix())
	for i := range k.stored.Others {
		o := &k.stored.Others[i]
		if o.Limit.Kind != leak.Leaky {
			continue // its log tells
		}
		o.Level.Level = max(o.Level.Level, o.Limit.Capacity)
		o.Dial = k.stored.State.Dial()
	}
}

// localReportsLocked returns reports as they count without the store, a hold of lastSeen
// first. Of the refusals of calls that the store admitted, the first of each of the
// store's epochs counts.
func (s *Store) localReportsLocked(k *degradedKey, key string, reports []leak.Report) []leak.Report {
	var local []leak.Report
	if seen, ok := s.seen[key]; ok && seen.heldUntil != k.heldUntil && seen.heldUntil > now() {
		k.heldUntil = seen.heldUntil
		local = append(local, leak.Report{Kind: leak.Held, Wait: seen.heldUntil - now()})
	}
	local = append(local, reports...)
	for i := range local {
		r := &local[i]
		if r.Kind != leak.Refused || r.Charge == nil || r.Charge.Born == k.stored.State.Born {
			continue
		}
		if k.refused == nil || r.Epoch > k.refused.Epoch {
			charge, refused := *r.Charge, *r
			refused.Charge = &charge
			k.refused = &refused
			r.Epoch = k.stored.State.Epoch
		}
	}
	return local
}
