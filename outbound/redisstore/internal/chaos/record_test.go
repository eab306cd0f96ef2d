//go:build linux

package chaos

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// spot is a reservation in the bucket time of one life of a bucket.
type spot struct{ born, place time.Duration }

// grant is a call that the store has admitted.
type grant struct {
	spot
	at  time.Duration // the server's time of the reply
	due time.Duration // the server's time at which the call may go

	// Not of a worker in a process of its own: the bucket time of the reply, and between
	// which moments of this machine that was.
	dial            time.Duration
	asked, answered time.Time
}

// record holds the grants and returns of a test's workers.
type record struct {
	mu       sync.Mutex
	grants   []grant
	returned map[spot]int
}

func (r *record) grant(g grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants = append(r.grants, g)
}

func (r *record) offer(spot) {}
func (r *record) keep(spot)  {}

func (r *record) giveBack(s spot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.returned == nil {
		r.returned = map[spot]int{}
	}
	r.returned[s]++
}

// used returns the grants that were not returned.
func (r *record) used() (all []grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := maps.Clone(r.returned)
	for _, g := range r.grants {
		if left[g.spot] > 0 {
			left[g.spot]--
			continue
		}
		all = append(all, g)
	}
	return all
}

// lives returns the used reservations, by the life of the bucket that granted them.
func (r *record) lives() map[time.Duration]*outboundtest.History {
	lives := map[time.Duration]*outboundtest.History{}
	for _, g := range r.used() {
		if lives[g.born] == nil {
			lives[g.born] = &outboundtest.History{}
		}
		lives[g.born].Add(time.Unix(0, 0).Add(g.place), 1)
	}
	return lives
}

// of returns the record of some grants: those of which keep says so.
func (r *record) of(keep func(grant) bool) *record {
	r.mu.Lock()
	defer r.mu.Unlock()
	part := &record{returned: maps.Clone(r.returned)} // queues may still give reservations back
	for _, g := range r.grants {
		if keep(g) {
			part.grants = append(part.grants, g)
		}
	}
	return part
}

// due returns the server's times at which the used reservations of all lives are due.
func (r *record) due() *outboundtest.History {
	h := &outboundtest.History{}
	for _, g := range r.used() {
		h.Add(time.Unix(0, int64(g.due)), 1)
	}
	return h
}

// gained returns by how much bucket time ran ahead of this machine's time at most, between any
// two grants of one life.
func (r *record) gained() (most time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var least time.Duration // how far bucket time was ahead, if the grant was made when it was asked for
	for i, g := range r.grants {
		if i == 0 {
			least = g.dial - g.asked.Sub(r.grants[0].asked)
		}
		most = max(most, g.dial-g.answered.Sub(r.grants[0].asked)-least)
		least = min(least, g.dial-g.asked.Sub(r.grants[0].asked))
	}
	return most
}

// rounding is the cost, in units, of the microseconds in a server's times.
const rounding = 1e-2

// checkReservations fails the test if the reservations of one life of the bucket break a promise by
// more than slack.
func (r *record) checkReservations(t *testing.T, p promise, slack float64) {
	t.Helper()
	worst, calls := 0., 0
	lives := r.lives()
	for _, h := range lives {
		worst = max(worst, p.kept().excess(h))
		calls += h.Len()
	}
	t.Logf("reservations: %d, in %d lives of the bucket; %.3f above %v, %.3f allowed", calls, len(lives), worst, p, slack)
	require.NotZero(t, calls, "nothing was granted")
	require.LessOrEqual(t, worst, slack+rounding, "the store has granted too much")
}

// ledger records what becomes of calls.
type ledger interface {
	grant(grant)
	offer(spot) // a round trip begins that is to give the reservation back
	giveBack(spot)
	keep(spot) // the round trip has not given it back
}

// witness is a store around another one. It records what that store grants under one
// key, and what callers give back.
type witness struct {
	store.Store
	key    string
	ledger ledger
}

func (w witness) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if key != w.key {
		return w.Store.Update(ctx, key, op)
	}
	var offered []spot
	for _, c := range op.Unused {
		offered = append(offered, spot{c.Born, c.Place})
	}
	if op.Move != nil {
		offered = append(offered, spot{op.Move.Born, op.Move.Place})
	}
	for _, s := range offered {
		w.ledger.offer(s)
	}
	asked := time.Now()
	r, err := w.Store.Update(ctx, key, op)
	answered := time.Now()
	n := len(op.Unused) // given back
	if op.Move != nil && len(r.Charges) > 0 {
		n++
	}
	if r.Stale && !r.Reported { // the store has done nothing
		n = 0
	}
	for i, s := range offered {
		if i < n {
			w.ledger.giveBack(s)
		} else {
			w.ledger.keep(s)
		}
	}
	for _, c := range r.Charges {
		in, late := r.State.Due(c.Place)
		w.ledger.grant(grant{spot{c.Born, c.Place}, r.State.At, r.State.At + in - late, r.State.Dial(), asked, answered})
	}
	return r, err
}

// recovery returns how long after from the rate is back: the shortest time after
// which a window has at least rate calls per second. It returns less than 0 if that
// never happens. The times are sorted.
func recovery(times []time.Time, from time.Time, window time.Duration, rate float64) time.Duration {
	want := int(rate * window.Seconds())
	// A window with enough calls begins with one of them, or is part of a longer one.
	first, _ := slices.BinarySearchFunc(times, from, time.Time.Compare)
	for i := first; i+want <= len(times); i++ {
		if want == 0 || times[i+want-1].Sub(times[i]) < window {
			return times[i].Sub(from)
		}
	}
	return -1
}
