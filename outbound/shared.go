package outbound

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// sharedState is a key in a store.
type sharedState struct {
	store leak.Store
	key   string       // there
	made  *limitSet    // what the bucket was made with
	ahead atomic.Int64 // by how much the store's time of day is ahead of this process's, in ns
}

// apart begins the keys of reservations in a store. No other key begins so and goes on with a
// digit.
const apart = "\x00reserved"

// storeKey returns the key in a store of a bucket's key, which is the same but for those that begin
// like a key of reservations.
func storeKey(key string) string {
	if rest, ok := strings.CutPrefix(key, apart); ok {
		return apart + "\x00" + rest
	}
	return key
}

// keyOfReservations returns the key in a store of the reservations under the limits of a version.
func (h *sharedState) keyOfReservations(version int64) string {
	return apart + strconv.FormatInt(version, 10) + ":" + h.key
}

// mostStale is how often a store may do nothing, because other limits are in force or its
// time is in other periods of the calendar, before a step is given up.
const mostStale = 8

var (
	errStale    = errors.New("the limits change faster than they can be heard of")
	errUntimely = errors.New("the store's time of day is in no period of the calendar that it was told of")
)

// update has the store carry a step out, by the limits that are in force there.
func (h *sharedState) update(ctx context.Context, m *common, s *step, t *trip, r *reply) (err error) {
	asked := m.slots.reserve(s)
	for stale := 0; ; stale++ {
		r.force = m.force.Load()
		r.bad = t.resolve(s, r.force)
		if c := r.force.calendar; c != nil {
			t.op.Periods = c.at(unixOf(time.Now()) + time.Duration(h.ahead.Load()))
		}
		if s.action == leak.Replace {
			t.set = h.replacement(s, r.force)
			t.op.Replacement, t.op.Unset = t.set.law, len(s.limits) == 0
		}
		r.Reply, err = h.store.Update(ctx, h.key, &t.op)
		if err == nil && r.Unix != 0 && r.force.calendar != nil {
			h.learn(&r.Reply)
		}
		if r.Reported && (err != nil || r.Stale) { // they are not to be sent again
			t.settled()
			s.reports, s.back = nil, nil
			m.waiting.changed()
		}
		if err != nil || !r.Stale {
			break
		}
		most := errUntimely
		if !r.Untimely {
			most, err = errStale, m.force.learnStale(r.force, &r.Reply, h.made)
		}
		if err == nil && stale == mostStale {
			err = most
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

// learn notes what a reply tells of the store's time of day.
func (h *sharedState) learn(r *leak.Reply) {
	at := r.When
	if at.IsZero() {
		at = time.Now()
	}
	h.ahead.Store(int64(r.Unix - unixOf(at)))
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
