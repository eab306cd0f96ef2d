package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// callTime learns how long calls with a deadline take from their admission to their end.
type callTime struct {
	long  atomic.Int64 // about 1 call in 50 takes longer; or 0 before the first sample
	ended atomic.Int64 // when the last sample ended, since start
	next  atomic.Int64 // when to measure the next call that has not waited, since start, or 0

	unanswered atomic.Uint64 // see Stats

	mu     sync.Mutex  // protects what follows
	recent [6]struct { // the calls without an answer of the last minute
		of    time.Duration // which ten seconds, since start
		n     int
		after time.Duration // the sum of the times from their admissions to their deadlines
	}
}

// lost counts a call without an answer.
func (t *callTime) lost(now, after time.Duration) {
	t.unanswered.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	part := now / (10 * time.Second)
	k := &t.recent[uint64(part)%6]
	if k.of != part {
		k.of, k.n, k.after = part, 0, 0
	}
	k.n++
	k.after += after
}

// lately returns the calls without an answer of the last minute, and the mean time until their
// deadlines.
func (t *callTime) lately() (n int, after time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	part := time.Since(start) / (10 * time.Second)
	for i := range t.recent {
		if k := &t.recent[i]; part-k.of < 6 {
			n, after = n+k.n, after+k.after
		}
	}
	return n, after / time.Duration(max(1, n))
}

const (
	// samples is how many calls that have not waited are measured in the time of one.
	samples = 16
	// forgotten is how long after the last sample the time of calls is unknown again.
	forgotten = time.Minute
	// longer and shorter are how much long changes for a call that takes longer, and for any other.
	// It stands where 1 call in 52 is longer: ln(3/2) is 52 times ln(129/128).
	longer, shorter = 2, 128
)

// needs returns how much of the time from a call's arrival to its deadline is kept for the API.
// What was learnt takes at most 7/8: a call that comes needs some time to wait, or nothing would be
// learnt once the API has become slow. A store needs the time of its requests, as for a MaxWait.
func (q *Queue) needs(budget time.Duration) time.Duration {
	need, t := q.config.CallTime, &q.callTime
	if need == 0 && time.Since(start)-time.Duration(t.ended.Load()) <= forgotten {
		need = min(time.Duration(t.long.Load()), budget-budget/8)
	}
	if q.shared {
		need = min(need, budget-q.requests.least())
	}
	return max(0, need)
}

// measure has the end of a call with a deadline measured. A sample is an allocation, so some of the
// calls that have not waited are enough.
func (q *Queue) measure(ctx context.Context, p *outbound.Permit, waited bool) {
	if _, ok := ctx.Deadline(); !ok {
		return
	}
	t, now := &q.callTime, time.Since(start)
	if !waited {
		next, after := t.next.Load(), max(time.Millisecond, time.Duration(t.long.Load()/samples))
		if next != 0 && now < time.Duration(next) || !t.next.CompareAndSwap(next, int64(now+after)) {
			return
		}
	}
	p.Listen(&sample{callTime: t, ctx: ctx, admitted: now})
}

// sample is an admitted call whose end is measured.
type sample struct {
	*callTime
	ctx      context.Context
	admitted time.Duration // since start
	failed   atomic.Bool
}

// Answered notes that the call was refused or has failed: its time is not that of an answer.
func (s *sample) Answered(a outbound.Answer) {
	if a.Kind == outbound.AnswerRefused || a == (outbound.Answer{}) {
		s.failed.Store(true)
	}
}

// Done learns from the call at its end.
func (s *sample) Done() {
	t, now, err := s.callTime, time.Since(start), s.ctx.Err()
	took, long := int64(now-s.admitted), t.long.Load()
	if err == context.DeadlineExceeded {
		end, _ := s.ctx.Deadline()
		t.lost(now, end.Sub(start)-s.admitted)
	}
	switch {
	case err == nil && s.failed.Load(), err != nil && took < long:
		return // how long an answer would have taken is unknown
	case long == 0 || now-time.Duration(t.ended.Load()) > forgotten:
		long = 2 * took
	case took > long:
		long += max(1, long/longer)
	default:
		long -= long / shorter
	}
	t.long.Store(max(1, long))
	t.ended.Store(int64(now))
}
