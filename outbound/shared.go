package outbound

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// sharedState is a key in a store.
type sharedState struct {
	store store.Store
	key   string       // there
	ahead atomic.Int64 // by how much the store's time of day is ahead of this process's, in ns
	// latency is how long a reply normally takes to be here, as the last one to a lone call said.
	latency atomic.Int64
}

// update has the store carry a step out, and writes its reply.
func (h *sharedState) update(ctx context.Context, op *store.Op, r *store.Reply) (err error) {
	*r, err = h.store.Update(ctx, h.key, op)
	if err == nil && r.State.Unix != 0 && op.Periods != nil {
		at := r.When
		if at.IsZero() {
			at = time.Now()
		}
		h.ahead.Store(int64(r.State.Unix - calendar.Stamp(at)))
	}
	return err
}

// apart begins the keys of reservations in a store. No other key begins so and goes on with a
// digit.
const apart = "\x00reserved"

// storeKey returns the key in a store of a bucket's key, which is the same except for those that
// begin like a key of reservations.
func storeKey(key string) string {
	if rest, ok := strings.CutPrefix(key, apart); ok {
		return apart + "\x00" + rest
	}
	return key
}

// keyOfReservations returns the key in a store of the reservations by these limits.
func (h *sharedState) keyOfReservations(limits []store.Limit) string {
	return apart + strconv.FormatUint(store.Hash(limits), 10) + ":" + h.key
}
