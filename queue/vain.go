package queue

import "time"

// inVain is how many trips in a row may be in vain before there are pauses between
// them: until then a trip is pause enough.
const inVain = 3

// reckon counts the trips in a row that were in vain although the store has refused
// nobody: the places had passed before the replies were here. The more there were the
// longer it is not asked.
func (q *Queue) reckon(admitted, vain bool) {
	switch {
	case admitted || q.list.n == 0:
		q.vain, q.calm = 0, time.Time{}
	case vain:
		if q.vain++; q.vain > inVain {
			q.calm = time.Now().Add(ahead << min(q.vain-inVain, 6))
		}
	}
}

// expire refuses those who wait for a slot, or for a store that has no place that can
// be used, and may not wait any longer. All others were refused before they waited in
// vain.
func (q *Queue) expire(now time.Time) {
	for w := q.list.first; (q.noSlot || !q.calm.IsZero()) && w != nil && w == q.list.rest && !w.deadline.IsZero() && !w.deadline.After(now); w = q.list.first {
		q.refuse(w, q.refusal(time.Time{}, because(w.byCtx)))
	}
}
