package fallback

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

const (
	// most is the largest capacity, and the highest rate, that a limit may have.
	most = 1e12
	// century is as long as a limit may take to drain, in seconds.
	century = 876_600 * 3600.
)

// births tells the lives of shares apart. Each is born at a time of its own, so far back that no
// store's clock shows it.
var births atomic.Int64

// away is a key that is away.
type away struct {
	// look asks for nothing. It has the limits in force, as far as this process has heard, and the
	// periods of the latest call.
	look     store.Op
	open     bool          // stored is the share of limits
	stored   store.Stored  // its Limits are what this process may use of limits
	epoch    int64         // the newest epoch of the store of which a refusal was reported
	spent    perUnit       // what the store is not charged with yet
	spentAt  time.Duration // when spent last changed
	charging chan struct{} // closed when the charge that is under way ends; nil: none is
	stuck    bool          // the store has answered, and not taken the charge: the next call tries again
}

func newAway(op *store.Op) *away {
	return &away{look: store.Op{Limits: op.Limits, Number: max(1, op.Number), Base: op.Base, Age: op.Age, Periods: op.Periods}}
}

// serveLocked is Update without the store.
func (s *Store) serveLocked(key string, op *store.Op) (store.Reply, error) {
	k := s.keys[key]
	if s.fails() || op.Action == store.Resume || op.Action == store.Replace || k == nil && !s.Unlimited {
		return store.Reply{}, s.cause
	}
	if k == nil { // there are too many keys: one for this call
		k = newAway(op)
	}
	if op.Number > k.look.Number { // others were set shortly before, and this bucket has heard of them
		k.look, k.open = newAway(op).look, false
	}
	r := store.Reply{Stale: !store.Same(op.Limits, k.look.Limits), Limit: -1}
	if !r.Stale {
		t, date := now(), unix()
		if k.look.Periods = op.Periods; !k.open {
			r = s.open(key, k, t, date)
		}
		if k.open {
			r = k.apply(op, t, date)
		}
		share := k.stored.Limits
		if i := r.Limit; r.Refused && len(r.Charges) == 0 && i >= 0 && op.Costs[0][i] > share[i].Capacity {
			return store.Reply{}, s.cause // no wait makes it fit the share
		}
		if !s.Unlimited {
			r.Share = share
		}
		// The bucket sees levels of the whole limit, in which the shares of others are full.
		for i := range k.look.Limits {
			r.State.Level[i] = max(0, r.State.Level[i]+k.look.Limits[i].Capacity-share[i].Capacity)
		}
	}
	if r.Number, r.Limits, r.Base = k.look.Number, nil, 0; op.Number != k.look.Number || r.Stale {
		r.Limits, r.Base, r.Made = k.look.Limits, k.look.Base, math.MaxInt64 // every process yields to them
	}
	return r, nil
}

// apply carries an operation out in the share. Of the refusals of calls that the store has admitted,
// the first of each of the store's epochs begins an episode.
func (k *away) apply(op *store.Op, t, date time.Duration) store.Reply {
	here := *op
	here.Limits, here.Reports = k.stored.Limits, slices.Clone(op.Reports)
	for i := range here.Reports {
		r := &here.Reports[i]
		if r.Kind == store.Refused && r.Charge != nil && r.Charge.Born != k.stored.State.Born && (k.epoch == 0 || r.Epoch > k.epoch) {
			k.epoch, r.Epoch = r.Epoch, k.stored.State.Epoch
		}
	}
	r := here.ApplyAt(&k.stored, t, date)
	if !r.Untimely {
		k.spend(&here, &r, t)
	}
	return r
}

// open begins the share of a key. It is full, so that the switch causes no burst. Of a calendar it is
// as full as the calendar was when the store last said so. A hold and a slow-down go on.
func (s *Store) open(key string, k *away, t, date time.Duration) store.Reply {
	share := make([]store.Limit, len(k.look.Limits))
	was := s.seen[key]
	fill := store.Op{Limits: share, Periods: k.look.Periods, Action: store.Meter, Costs: make([]store.Units, 1)}
	for i := range share {
		if share[i] = s.shrink(k.look.Limits[i]); s.Unlimited {
			continue
		}
		if fill.Costs[0][i] = share[i].Capacity; share[i].Kind.Calendar() {
			fill.Costs[0][i] *= was.used(&k.look.Limits[i], date)
		}
	}
	state := store.New(t, len(share))
	state.Born = -1<<62 + time.Duration(births.Add(1))
	state.Epoch = int64(state.Born)
	held := time.Duration(0)
	if was.speed > 0 {
		state.At, state.Speed = was.at, was.speed
		held = was.rem - (t - was.at)
	}
	state.Skip = state.At - state.Born
	if k.stored.Limits != nil { // by other limits
		held = max(held, k.stored.State.Rem-(t-k.stored.State.At))
	}
	k.stored = store.Stored{State: state, Limits: share, Number: 1}
	if held > 0 {
		fill.Reports = []store.Report{{Kind: store.Held, Wait: held}}
	}
	r := fill.ApplyAt(&k.stored, t, date)
	k.open = !r.Untimely
	return r
}

// shrink returns this process's share of a limit.
func (s *Store) shrink(l store.Limit) store.Limit {
	if l.Kind == store.Fixed { // the windows of processes begin at different times, and their sum is to fit into any
		l.Kind = store.Window
	}
	l.N = 0
	if l.Kind == store.Leaky {
		l.Window = 0
	}
	if s.Unlimited {
		l.Capacity, l.Rate = most, most
		if l.Kind == store.Window {
			l.Capacity = most * min(1, l.Window.Seconds())
		}
	} else {
		s.divide(&l)
	}
	switch {
	case l.Kind == store.Window:
		l.Rate = l.Capacity / l.Window.Seconds()
	case l.Kind.Calendar():
		l.Rate = 0
	}
	return l
}

// divide makes a limit the Share of it. If that is less than a unit, it is a whole unit that comes
// back as seldom as the Share says. Of a calendar it stays less: a unit of each period would be more
// often.
func (s *Store) divide(l *store.Limit) {
	least := min(1, l.Capacity)
	l.Capacity *= s.Share
	l.Rate *= s.Share
	if whole := math.Round(l.Capacity); whole > l.Capacity && whole <= l.Capacity*(1+0.5e-9) {
		l.Capacity = whole // a 49th of 49 is 1, except for rounding
	}
	switch {
	case l.Kind.Calendar():
		l.Capacity = max(l.Capacity, math.SmallestNonzeroFloat64) // no limit has a capacity of 0
	case l.Capacity < least:
		sec := min(least/l.Rate, century)
		l.Capacity, l.Rate = least, least/sec
		if l.Kind == store.Window {
			l.Window = time.Duration(sec * 1e9)
		}
	}
}
