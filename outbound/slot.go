package outbound

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// slot is a place among the calls at once. It ends with Done, or, as a safety
// net, when nobody holds the permit any more, so that nobody could call Done.
type slot struct {
	bucket     *Bucket
	since      time.Duration // when it was taken
	prev, next *slot         // in the ledger's list
	ended      atomic.Bool
	net        runtime.Cleanup
}

// hold notes the slot that the booking has taken, if it has.
func (k *call) hold(r *reply) {
	if r.slots {
		k.slot = &slot{bucket: k.bucket}
		k.bucket.ledger().enter(k.slot)
		k.slot.net = runtime.AddCleanup(k, (*slot).forgotten, k.slot)
	}
}

// end gives the slot back and lets those who wait for one know.
func (s *slot) end() {
	if s.drop() > 0 {
		s.bucket.free(1)
		s.bucket.ledger().changed()
	}
}

// inUse returns how many places the slot is: 1, or 0 if there is none or it has ended.
func (s *slot) inUse() int {
	if s == nil || s.ended.Load() {
		return 0
	}
	return 1
}

// drop returns how many slots the caller has to give back in its place: 1 or 0.
func (s *slot) drop() int {
	if s == nil || s.ended.Swap(true) {
		return 0
	}
	s.net.Stop()
	l := s.bucket.ledger()
	l.mu.Lock()
	l.taken.remove(s)
	l.mu.Unlock()
	return 1
}

// forgotten runs beside the program: it only counts, and the bucket's next
// operation makes use of it.
func (s *slot) forgotten() {
	if !s.ended.Swap(true) {
		s.bucket.slow.Load().lost.Add(1)
	}
}

// slots are the slots that are taken, the oldest first. A forgotten one is among them
// until the bucket's next operation.
type slots struct{ first, last *slot }

func (l *slots) add(s *slot) {
	if s.prev = l.last; s.prev != nil {
		s.prev.next = s
	} else {
		l.first = s
	}
	l.last = s
}

// remove takes s out, if it is in.
func (l *slots) remove(s *slot) {
	if s.prev == nil && l.first != s {
		return
	}
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		l.last = s.prev
	}
	s.prev, s.next = nil, nil
}

// sweep takes out those that have ended.
func (l *slots) sweep() {
	for s := l.first; s != nil; {
		next := s.next
		if s.ended.Load() {
			l.remove(s)
		}
		s = next
	}
}

// free takes n calls at once as ended.
func (b *Bucket) free(n int) {
	if n > 0 {
		l := b.ledger()
		l.mu.Lock()
		l.used -= n
		l.mu.Unlock()
	}
}

// room reports whether another call at once could start.
func (b *Bucket) room() bool {
	slots := b.slots()
	if slots == 0 {
		return true
	}
	l := b.ledger()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used-int(l.lost.Load()) < slots
}

// enter adds a slot that a call has taken just now.
func (l *ledger) enter(s *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.since = now()
	l.taken.add(s)
}

// crowded has the error tell of the calls in progress, which have taken all slots.
func (l *ledger) crowded(e *ThrottledError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limits := l.force.Load().all
	if l.store != nil { // an AtOnce is this worker's own
		limits = l.made.all
	}
	for _, limit := range limits {
		if limit.atOnce {
			e.Limit = limit.Name
		}
	}
	e.InProgress = l.used
	if l.taken.first != nil {
		e.Oldest = now() - l.taken.first.since
	}
}

// reserve has a booking ask for no more than there are places among the calls at once,
// and takes these, because the answer of a store takes its time. It returns all that the
// booking asks for. mu is held.
func (l *ledger) reserve(s *step) (costs []Cost) {
	costs = s.costs
	if lost := l.lost.Swap(0); lost > 0 {
		l.used -= int(lost)
		l.collected += int(lost)
		l.taken.sweep()
	}
	l.used -= s.freed
	s.freed = 0
	slots := int(l.slots.Load())
	if s.action != leak.Book || slots == 0 {
		return costs
	}
	free := max(0, slots-l.used) + s.brings
	if s.costs = costs[:min(len(costs), free)]; len(s.costs) == 0 {
		s.move = nil // or it would be undone, and nothing booked
	}
	l.missed = l.missed || len(s.costs) < len(costs) && l.reserved > 0
	n := s.beyond(len(s.costs))
	l.used += n
	l.reserved += n
	return costs
}

// beyond returns how many places among the calls at once n bookings take beyond the
// one that move brings.
func (s *step) beyond(n int) int { return max(0, n-s.brings) }

// seat gives the places back that were reserved for more than was booked, and says so
// where there was none for the next of costs. It reports whether somebody was refused
// for want of those meanwhile. mu is held.
func (l *ledger) seat(s *step, costs []Cost, r *reply) (missed bool) {
	if s.action == leak.Book && l.slots.Load() > 0 {
		n := len(s.costs)
		reserved, taken := s.beyond(n), s.beyond(len(r.Charges))
		l.used -= reserved - taken
		l.reserved -= reserved
		r.slots = true
		if !r.Refused && len(r.Charges) == n && n < len(costs) {
			r.Refused, r.noSlot = true, true
		}
		s.costs = costs
		if reserved > taken {
			missed, l.missed = l.missed, false
		}
	}
	r.used, r.collected = l.used, l.collected
	return missed
}

// seated is seat for an operation in a store, which may have failed.
func (l *ledger) seated(s *step, costs []Cost, r *reply) {
	l.mu.Lock()
	missed := l.seat(s, costs, r)
	l.mu.Unlock()
	for i := range l.made.all {
		if l.made.all[i].atOnce {
			r.given = slices.Clone(r.force.own)
			r.given = slices.Insert(r.given, min(i, len(r.given)), l.made.all[i])
		}
	}
	if missed {
		l.changed()
	}
}
