package fallback

import (
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// unlimited is the capacity or the rate of a limit that admits all calls: half of what is possible.
const unlimited = 5e11

// births counts the shares. Each has another time of birth, so far back that no store's clock
// shows it.
var births atomic.Int64

// away is a key that is away.
type away struct {
	key      string
	look     store.Op // asks for nothing. It has the limits in force, as far as this process knows
	calendar *calendar.Calendar
	stored   store.Stored  // its Limits are what this process may use of limits; nil before it begins
	spent    store.Units   // what the store is not charged with yet, of each of limits
	spentAt  time.Duration // when spent last grew
	back     time.Time     // when the store first answered; zero while it is unavailable
}

func newAway(key string, op *store.Op) *away {
	k := &away{key: key, look: store.Op{Age: op.Age}}
	k.adopt(op)
	return k
}

// adopt has a key count by the limits of an operation. What was spent counts in its unit.
func (k *away) adopt(op *store.Op) {
	var spent store.Units
	for i := range op.Limits {
		for j := range k.look.Limits {
			if k.look.Limits[j].Unit == op.Limits[i].Unit {
				spent[i] = max(spent[i], k.spent[j])
			}
		}
	}
	if !store.Equal(op.Limits, k.look.Limits) {
		k.stored.Limits = nil
	}
	k.look.Limits, k.look.Number, k.look.Base = op.Limits, max(1, op.Number), op.Base
	k.calendar, k.spent = calendar.New(op.Limits), spent
}

// leave has a key do without the store again. The hold and the speed are in seen.
func (k *away) leave() {
	if !k.back.IsZero() {
		k.back, k.stored = time.Time{}, store.Stored{}
	}
}

// serveLocked is Update without the store.
func (s *Store) serveLocked(k *away, op *store.Op) (store.Reply, error) {
	if op.Action == store.Resume || op.Action == store.Replace {
		return store.Reply{}, s.cause
	}
	if op.Number > k.look.Number { // other limits were set shortly before, and this bucket has learned of them
		k.adopt(op)
	}
	r := store.Reply{Stale: !store.Same(op.Limits, k.look.Limits), Limit: -1}
	if !r.Stale {
		if k.stored.Limits == nil {
			s.open(k)
		}
		r = k.apply(op)
		share := k.stored.Limits
		if i := r.Limit; r.Refused && len(r.Charges) == 0 && i >= 0 && store.Needs(share, &op.Costs[0], op.Headroom)[i] > share[i].Capacity {
			return store.Reply{}, s.cause // no wait makes it fit the share
		}
		if !s.Unlimited {
			r.Share = share
		}
		// The bucket sees levels of the whole limit: the shares of other processes are full.
		for i := range share {
			r.State.Level[i] = max(0, r.State.Level[i]+k.look.Limits[i].Capacity-share[i].Capacity)
		}
	}
	if r.Number, r.Limits, r.Base = k.look.Number, nil, 0; op.Number != k.look.Number || r.Stale {
		r.Limits, r.Base = k.look.Limits, op.Base // every process yields to them
	}
	return r, nil
}

// apply carries an operation out in the share, and counts what it has spent. The refusal of a call
// that the store has admitted has the store's epoch. The share goes on with it, so that the
// refusals of one burst count once.
func (k *away) apply(op *store.Op) store.Reply {
	t, date := now(), unix()
	here, rest := *op, store.Op{Limits: k.stored.Limits, Periods: k.calendar.At(date)}
	here.Limits, here.Periods, here.Reports = rest.Limits, rest.Periods, nil
	for _, r := range op.Reports {
		if r.Kind == store.Settled {
			here.Reports = append(here.Reports, r)
			continue
		}
		rest.Reports = append(rest.Reports, r) // what they fill is not spent
		if r.Kind == store.Refused && r.Epoch > k.stored.State.Epoch {
			k.stored.State.Epoch = r.Epoch
		}
	}
	before := rest.ApplyAt(&k.stored, t, date)
	r := here.ApplyAt(&k.stored, t, date)
	for i := range here.Limits {
		more := r.State.Level[i] - before.State.Level[i]
		if k.spent[i] = max(0, k.spent[i]+more); more > 0 {
			k.spentAt = t
		}
	}
	return r
}

// open begins the share of a key. It is full, so that the switch causes no burst. The share of a
// calendar is as full as the calendar was by the store's last reply. A hold and a slow-down go on.
func (s *Store) open(k *away) {
	t, date := now(), unix()
	share := make([]store.Limit, len(k.look.Limits))
	was := s.seen[k.key]
	fill := store.Op{Limits: share, Periods: k.calendar.At(date), Action: store.Meter, Costs: make([]store.Units, 1)}
	for i := range share {
		if share[i] = s.shrink(&k.look.Limits[i]); !s.Unlimited {
			fill.Costs[0][i] = share[i].Capacity * k.used(&was, i, date)
		}
	}
	state := store.New(t, len(share))
	state.Born = -1<<62 + time.Duration(births.Add(1))
	state.Epoch = int64(state.Born)
	for _, last := range []*store.State{&was.state, &k.stored.State} { // the second is by other limits
		if last.Speed > 0 {
			state.At, state.Speed, state.Epoch = last.At, last.Speed, last.Epoch
			fill.Reports = append(fill.Reports, store.Report{Kind: store.Held, Wait: last.Rem - (t - last.At)})
		}
	}
	state.Skip = state.At - state.Born
	k.stored = store.Stored{State: state, Limits: share, Number: 1}
	fill.ApplyAt(&k.stored, t, date)
}

// shrink returns this process's share of a limit.
func (s *Store) shrink(l *store.Limit) store.Limit {
	if s.Unlimited {
		return l.Share(unlimited / max(l.Capacity, l.Rate))
	}
	return l.Share(s.Share)
}
