package outbound

import (
	"context"
	"errors"
	"slices"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// sharedState is a key in a store.
type sharedState struct {
	store leak.Store
	made  *limitSet // what the bucket was made with
}

// mostStale is how often other limits may be found in force before a step is given up.
const mostStale = 8

var errStale = errors.New("the limits change faster than they can be heard of")

// update has the store carry a step out, by the limits that are in force there.
func (h *sharedState) update(ctx context.Context, key string, m *common, s *step, t *trip, r *reply) (err error) {
	asked := m.slots.reserve(s)
	for stale := 0; ; stale++ {
		r.force = m.force.Load()
		r.bad = t.resolve(s, r.force, false)
		if s.action == leak.Replace {
			t.set = h.replacement(s, r.force)
			t.op.Replacement, t.op.Unset = t.set.law, len(s.limits) == 0
		}
		r.Reply, err = h.store.Update(ctx, key, &t.op)
		if err != nil || !r.Stale {
			break
		}
		if r.Reported {
			t.note()
			s.reports, s.back = nil, nil
			m.waiting.changed()
		}
		if err = m.force.learnStale(r.force, &r.Reply, h.made); err == nil && stale == mostStale {
			err = errStale
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		r.Reply = leak.Reply{}
	} else {
		r.force = m.force.learn(r.force, &r.Reply, t.set)
		r.extended = m.hold.extends(&r.State)
		m.waiting.confirm(&r.State)
	}
	if m.slots.seat(s, asked, r) {
		m.waiting.changed()
	}
	if err == nil {
		m.watches.announce(r)
	}
	return err
}

// replacement returns the limits that the step sets: none are the bucket's own.
func (h *sharedState) replacement(s *step, f *inForce) *limitSet {
	if len(s.limits) == 0 {
		return h.made
	}
	limits := slices.Clone(s.limits)
	inherit(limits, f.list())
	set := newLimitSet(limits)
	return &set
}
