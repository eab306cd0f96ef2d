package queue

import (
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// inVain is how many trips in a row may be in vain before there are pauses between
// them: until then a trip is pause enough.
const inVain = 3

// reckon counts the trips that were in vain since a call has gone last, although the
// store has refused nobody: the places had passed before the replies were here. The
// more there were the longer it is not asked.
func (q *Queue) reckon(vain bool) {
	if !vain {
		return
	}
	if q.vain++; q.vain > inVain {
		q.calm = time.Now().Add(ahead << min(q.vain-inVain, 6))
	}
}

// expire refuses those who wait for a slot, or for a store that has no place that can
// be used, and may not wait any longer. All others were refused before they waited in
// vain.
func (q *Queue) expire(now time.Time) {
	for w := q.list.first; (q.noSlot || !q.calm.IsZero()) && w != nil && w == q.list.rest && !w.deadline.IsZero() && !w.deadline.After(now); w = q.list.first {
		e := q.refusal(time.Time{}, because(w.byCtx))
		if q.noSlot {
			e = q.crowded(e, now)
		}
		q.refuse(w, e)
	}
}

// crowded has a refusal tell of the calls at once that have not ended, as of the last
// trip: if one had ended since, the bucket would have told.
func (q *Queue) crowded(e *outbound.ThrottledError, now time.Time) *outbound.ThrottledError {
	var full *outbound.ThrottledError
	if errors.As(q.full, &full) {
		e.Limit, e.InProgress, e.Oldest = full.Limit, full.InProgress, full.Oldest+now.Sub(q.heard)
	}
	return e
}
