package outbound

import (
	"container/list"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// slots are those of the calls in flight. Package store does not count them. A bucket in this
// process counts its own calls. A shared one counts the slots that it holds among all processes.
type slots struct {
	made      *Limit                // the limit that the bucket was made with, or nil
	limit     atomic.Pointer[Limit] // nil for any number of slots
	adapted   atomic.Pointer[Limit] // the limit in force, if an Adaptive one has changed, or nil
	collected atomic.Int64          // slots of permits that were dropped without Done, so far

	fleet *holder // nil if all are this bucket's own

	mu        sync.Mutex // protects what follows
	used      int
	reserved  int           // of those in use, the ones with a request to a store in progress
	missed    bool          // a call was refused because all were in use, some of them reserved
	taken     list.List     // the *slot of each call in progress, the oldest first
	cut       time.Duration // when an Adaptive was halved
	successes int           // successes in sequence since then, of calls during which all slots were in use
	full      time.Duration // when all slots were in use last
}

// anyNumber are the slots of a bucket without an InFlight.
var anyNumber slots

// most returns how many slots there are, or 0 for any number.
func (p *slots) most() int {
	if a := p.inForce(); a != nil {
		return int(a.Capacity)
	}
	return 0
}

// inForce returns the limit with as many slots as there are now.
func (p *slots) inForce() *Limit {
	if a := p.adapted.Load(); a != nil {
		return a
	}
	return p.limit.Load()
}

func (p *slots) init(l *Limit) {
	p.made, p.cut, p.full = l, never, never
	p.limit.Store(l)
}

// Now returns the limit in force, or nil.
func (p *slots) Now() any {
	if l := p.inForce(); l != nil {
		return l
	}
	return nil
}

// changed reports whether the limit is not that which the bucket was made with.
func (p *slots) changed() bool {
	l := p.limit.Load()
	return l != p.made && (l == nil || p.made == nil || *l != *p.made)
}

// Replace puts another limit in force.
func (p *slots) Replace(limit any) {
	l, _ := limit.(*Limit)
	p.mu.Lock()
	defer p.mu.Unlock()
	if was := p.limit.Swap(l); was == nil || l == nil || *was != *l {
		p.adapted.Store(nil)
	}
}

// adapt changes an Adaptive limit because of a refusal or a success of a call that was admitted
// after the last cut.
func (p *slots) adapt(admitted time.Duration, refused bool) {
	if a := p.limit.Load(); a == nil || a.n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	next := *p.inForce()
	switch most := int(next.Capacity); {
	case admitted <= p.cut:
		return
	case refused:
		next.Capacity, p.cut, p.successes = float64(max(1, most/2)), now(), 0
	case admitted > p.full || next.Capacity >= next.n:
		return
	default:
		if p.successes++; p.successes < most {
			return
		}
		next.Capacity, p.successes = float64(most+1), 0
	}
	next = next.intact()
	p.adapted.Store(&next)
}

// spare returns how many calls may start, of at most so many, that keep a fraction free.
func (p *slots) spare(most int, headroom float64) int {
	if p.fleet != nil {
		return p.fleet.spareBeside(headroom)
	}
	return max(0, most-p.used-keptFree(most, headroom))
}

// keptFree returns how many of the slots a fraction keeps free: less than all of them.
func keptFree(most int, fraction float64) int {
	return min(most-1, int((&store.Limit{Capacity: float64(most)}).Headroom(fraction)))
}

// ended counts n calls less. If refused is true, they were not sent.
func (p *slots) ended(n int, refused bool) {
	if p.used -= n; n > 0 && p.fleet != nil {
		p.fleet.freed(refused)
	}
}

// holds reports whether calls may start in slots that they have taken before.
func (p *slots) holds() bool {
	if p.fleet == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.fleet.lapsed()
}

// idle reports whether all calls have ended, and the last cut of an Adaptive limit is an hour ago.
func (p *slots) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used <= 0 && now()-p.cut >= store.Remember
}

// crowded adds the calls in progress, which have taken all slots, to the error.
func (p *slots) crowded(e *ThrottledError) {
	if a := p.limit.Load(); a != nil {
		e.Limit = a.label()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e.InProgress = p.used
	if oldest := p.taken.Front(); oldest != nil {
		e.Oldest = now() - oldest.Value.(*slot).since
	}
}

// reserve has a booking ask for no more than there are slots, and takes these, because the
// answer of a store takes its time. It returns all that the booking asks for.
func (p *slots) reserve(s *step) (asked []reports.Numbers) {
	most := p.most()
	s.seats = s.Action == store.Book && most > 0 && !s.inJob && s.Move == nil
	if most == 0 && s.freed == 0 {
		return s.Calls
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended(s.freed, false)
	s.freed = 0
	if !s.seats {
		return s.Calls
	}
	asked = s.Calls
	has, more := p.spare(most, s.Headroom), 0
	if p.fleet != nil {
		more = p.fleet.coming(s)
	}
	n := min(len(asked), has+more)
	s.Calls = asked[:n]
	p.missed = p.missed || n < len(asked) && p.reserved > 0
	p.used += n
	p.reserved += n
	if p.used >= most {
		p.full = now()
	}
	if p.fleet != nil && s.Headroom > 0 {
		p.fleet.low.granted -= n
	}
	if p.fleet != nil && s.Waits && has < len(asked) {
		p.fleet.lacks(len(asked)-has, s.Headroom)
	}
	return asked
}

// seat frees the slots of unbooked costs, and notes if the next one got no slot. It reports whether
// a call was refused meanwhile because they were reserved.
func (p *slots) seat(ctx context.Context, s *step, asked []reports.Numbers, r *reply) (missed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.slots = s.seats; s.seats {
		reserved, taken := len(s.Calls), len(r.Charges)
		if p.fleet != nil && s.Waits && reserved > taken { // it is another limit that lacks capacity
			if s.Headroom > 0 {
				p.fleet.low.wants = 0
				p.fleet.low.granted += reserved - taken
			} else if r.Refused {
				p.fleet.wants = 0
			}
		}
		if p.fleet != nil && s.Waits && reserved > 0 {
			p.fleet.full = r.Refused
		}
		p.ended(reserved-taken, true)
		p.reserved -= reserved
		if p.fleet != nil && s.Waits && taken > 0 {
			since := now()
			if n := min(taken, p.fleet.arrive(ctx)); n > 0 {
				taken -= n
				p.ended(n, true)
				r.missed, r.Charges = slices.Clone(r.Charges[taken:]), r.Charges[:taken]
				r.Refused, r.noSlot, r.Limit, r.Wait = true, true, -1, 0
			}
			r.slept = now() - since
		}
		if !r.Refused && taken == reserved && reserved < len(asked) {
			r.Refused, r.noSlot, r.Limit = true, true, -1
		}
		s.Calls = asked
		if reserved > taken {
			missed, p.missed = p.missed, false
		}
	}
	if r.used = p.used; p.fleet != nil {
		r.used = p.fleet.total()
	}
	r.collected = int(p.collected.Load())
	return missed
}

// free takes n calls as ended.
func (p *slots) free(n int) {
	if n > 0 {
		p.mu.Lock()
		p.ended(n, false)
		p.mu.Unlock()
	}
}

// take returns a slot for a call that has taken one just now.
func (p *slots) take() *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &slot{of: p, since: now()}
	s.element = p.taken.PushBack(s)
	return s
}

// slot is that of one call in flight. It ends with Done, or, as a safety net, when the permit is
// unreachable, so that Done cannot be called.
type slot struct {
	of      *slots
	since   time.Duration // when it was taken
	element *list.Element
	ended   atomic.Bool
	net     runtime.Cleanup
}

// end takes the slot out of the list, and reports whether it was in.
func (s *slot) end() bool {
	if s.ended.Swap(true) {
		return false
	}
	s.of.mu.Lock()
	s.of.taken.Remove(s.element)
	s.of.mu.Unlock()
	return true
}

// drop ends the slot, and returns how many the caller has to free: 1 or 0.
func (s *slot) drop() int {
	if s == nil || !s.end() {
		return 0
	}
	s.net.Stop()
	return 1
}

// forgotten ends the slot of a permit that the garbage collector has found. It runs concurrently
// and notifies no call: the bucket's next operation uses the slot.
func (s *slot) forgotten() {
	if s.end() {
		s.of.collected.Add(1) // before the bucket looks idle
		s.of.mu.Lock()
		s.of.used--
		s.of.mu.Unlock()
	}
}
