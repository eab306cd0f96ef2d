// Package slots counts calls in flight: those of this process, and those of a bucket's processes
// together.
package slots

import (
	"container/list"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Limit is how many calls may be in flight.
type Limit struct {
	Most    int
	Ceiling int           // what Most grows to, of a limit that adapts, or 0
	Lease   time.Duration // how long a silent process keeps its slots, where a store has them
	Unit    int           // the index of the number of a cost that it is listed with
	Name    string
	Version int
}

// KeptFree returns how many of the slots a fraction keeps free: less than all of them.
func KeptFree(most int, fraction float64) int {
	return min(most-1, int((&store.Limit{Capacity: float64(most)}).Headroom(fraction)))
}

// Slots are those of the calls in flight of one bucket. A bucket in this process counts its own
// calls. A shared one counts the slots that it holds among all processes. The zero Slots are any
// number.
type Slots struct {
	made      *Limit                // the limit that the bucket was made with, or nil
	limit     atomic.Pointer[Limit] // nil for any number of slots
	adapted   atomic.Pointer[Limit] // the limit in force, if one that adapts has changed, or nil
	collected atomic.Int64          // slots of permits that were dropped without Done, so far

	holder *Holder // nil if all are this bucket's own

	mu        sync.Mutex // protects what follows
	used      int
	reserved  int           // of those in use, the ones with a request to a store in progress
	missed    bool          // a call was refused because all were in use, some of them reserved
	taken     list.List     // the *Slot of each call in progress, the oldest first
	cut       time.Duration // when one that adapts was halved
	successes int           // successes in sequence since then, of calls during which all slots were in use
	full      time.Duration // when all slots were in use last
}

// Request is a step on a key as slots see it.
type Request struct {
	Calls    int     // that it books
	Seats    bool    // each of them needs a slot
	Freed    int     // slots that calls which it returns have freed
	Headroom float64 // the fraction of the slots that stays free
	Waits    bool    // a queue waits
	asks     int     // how many of Calls have a slot
}

// Seated is how a Request has ended.
type Seated struct {
	Seats     bool          // each booked call has a slot
	Short     int           // of the booked calls, the last ones have none
	NoSlot    bool          // the next call gets none
	Missed    bool          // a call was refused meanwhile, because the slots were reserved
	Used      int           // calls in flight
	Collected int           // calls in flight whose permits were dropped without Done, so far
	Slept     time.Duration // how long Seat has waited for slots
}

// Most returns how many slots there are, or 0 for any number.
func (p *Slots) Most() int {
	if a := p.InForce(); a != nil {
		return a.Most
	}
	return 0
}

// Limit returns the limit as it was set, or nil.
func (p *Slots) Limit() *Limit { return p.limit.Load() }

// Holder returns what holds this process's slots among those of all, or nil.
func (p *Slots) Holder() *Holder { return p.holder }

// Collected returns how many permits were dropped without Done, so far.
func (p *Slots) Collected() int { return int(p.collected.Load()) }

// InForce returns the limit with as many slots as there are now.
func (p *Slots) InForce() *Limit {
	if a := p.adapted.Load(); a != nil {
		return a
	}
	return p.limit.Load()
}

// Init sets slots up for a limit, or for any number.
func (p *Slots) Init(l *Limit) {
	p.made, p.cut, p.full = l, key.Never, key.Never
	p.limit.Store(l)
}

// Now returns the limit in force, or nil.
func (p *Slots) Now() any {
	if l := p.InForce(); l != nil {
		return l
	}
	return nil
}

// Changed reports whether the limit is not that which the bucket was made with.
func (p *Slots) Changed() bool {
	l := p.limit.Load()
	return l != p.made && (l == nil || p.made == nil || *l != *p.made)
}

// Replace puts another limit in force.
func (p *Slots) Replace(limit any) {
	l, _ := limit.(*Limit)
	p.mu.Lock()
	defer p.mu.Unlock()
	if was := p.limit.Swap(l); was == nil || l == nil || *was != *l {
		p.adapted.Store(nil)
	}
}

// Adapt changes a limit that adapts because of a refusal or a success of a call that was admitted
// after the last cut.
func (p *Slots) Adapt(admitted time.Duration, refused bool) {
	if a := p.limit.Load(); a == nil || a.Ceiling == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch next := *p.InForce(); {
	case admitted <= p.cut:
	case refused:
		next.Most, p.cut, p.successes = max(1, next.Most/2), key.Now(), 0
		p.adapted.Store(&next)
	case admitted <= p.full && next.Most < next.Ceiling:
		if p.successes++; p.successes >= next.Most {
			next.Most, p.successes = next.Most+1, 0
			p.adapted.Store(&next)
		}
	}
}

// spare returns how many calls may start, of at most so many, that keep a fraction free.
func (p *Slots) spare(most int, headroom float64) int {
	if p.holder != nil {
		return p.holder.spareBeside(headroom)
	}
	return max(0, most-p.used-KeptFree(most, headroom))
}

// ended counts n calls less. If refused is true, they were not sent.
func (p *Slots) ended(n int, refused bool) {
	if p.used -= n; n > 0 && p.holder != nil {
		p.holder.freed(refused)
	}
}

// Holds reports whether calls may start in slots that they have taken before.
func (p *Slots) Holds() bool {
	if p.holder == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.holder.lapsed()
}

// Idle reports whether all calls have ended, and the last cut is an hour ago.
func (p *Slots) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used <= 0 && key.Now()-p.cut >= store.Remember
}

// Crowd returns how many calls are in progress, and for how long the oldest.
func (p *Slots) Crowd() (used int, oldest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first := p.taken.Front(); first != nil {
		oldest = key.Now() - first.Value.(*Slot).since
	}
	return p.used, oldest
}

// Others returns how many other processes have slots, and how many one of them has at most.
func (p *Slots) Others() (processes, largest int) {
	if p.holder == nil {
		return 0, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holder.last.Others, p.holder.last.Largest
}

// Reserve returns how many calls a booking may ask its key for, and takes their slots, because the
// answer of a store takes its time.
func (p *Slots) Reserve(b *Request) int {
	most := p.Most()
	if b.Seats = b.Seats && most > 0; most == 0 && b.Freed == 0 {
		return b.Calls
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended(b.Freed, false)
	if !b.Seats {
		return b.Calls
	}
	has := p.spare(most, b.Headroom)
	b.asks = min(b.Calls, has+p.holder.coming(b))
	p.missed = p.missed || b.asks < b.Calls && p.reserved > 0
	p.used += b.asks
	p.reserved += b.asks
	if p.used >= most {
		p.full = key.Now()
	}
	if p.holder != nil {
		p.holder.demand(b.Headroom).granted -= b.asks
		if b.Waits && has < b.Calls {
			p.holder.want(b.Calls-has, b.Headroom)
			p.holder.plan()
		}
	}
	return b.asks
}

// Seat ends what Reserve has begun. It frees the slots of calls that were not booked, and waits for
// those that the request has counted on.
func (p *Slots) Seat(ctx context.Context, b *Request, booked int, refused bool) (s Seated) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Seats = b.Seats; b.Seats {
		waits := p.holder != nil && b.Waits
		if waits && b.asks > booked { // it is another limit that lacks capacity
			d := p.holder.demand(b.Headroom)
			if d.granted += b.asks - booked; refused || b.Headroom > 0 {
				d.calls = 0
			}
		}
		if waits && b.asks > 0 {
			p.holder.full = refused
		}
		p.ended(b.asks-booked, true)
		p.reserved -= b.asks
		if waits && booked > 0 {
			since := key.Now()
			s.Short = min(booked, p.holder.arrive(ctx))
			p.ended(s.Short, true)
			s.Slept = key.Now() - since
		}
		s.NoSlot = s.Short > 0 || !refused && booked == b.asks && b.asks < b.Calls
		if b.asks > booked-s.Short {
			s.Missed, p.missed = p.missed, false
		}
	}
	if s.Used = p.used; p.holder != nil {
		s.Used += p.holder.others
	}
	s.Collected = p.Collected()
	return s
}

// Free takes n calls as ended.
func (p *Slots) Free(n int) {
	if n > 0 {
		p.mu.Lock()
		p.ended(n, false)
		p.mu.Unlock()
	}
}

// Take returns a slot for a call that has taken one just now.
func (p *Slots) Take() *Slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &Slot{of: p, since: key.Now()}
	s.element = p.taken.PushBack(s)
	return s
}

// Slot is that of one call in flight. It ends with Done, or, as a safety net, when the permit is
// unreachable, so that Done cannot be called.
type Slot struct {
	of      *Slots
	since   time.Duration // when it was taken
	element *list.Element
	ended   atomic.Bool
	net     runtime.Cleanup
}

// Watch ends the slot when the permit that keeps it is unreachable.
func Watch[T any](permit *T, s *Slot) { s.net = runtime.AddCleanup(permit, (*Slot).forgotten, s) }

// Ended reports whether the slot has ended.
func (s *Slot) Ended() bool { return s.ended.Load() }

// end takes the slot out of the list, and reports whether it was in. If the garbage collector has
// found its permit, collected is 1, and the slot is free.
func (s *Slot) end(collected int) bool {
	if s.ended.Swap(true) {
		return false
	}
	s.of.collected.Add(int64(collected)) // before the bucket looks idle
	s.of.mu.Lock()
	s.of.taken.Remove(s.element)
	s.of.used -= collected
	s.of.mu.Unlock()
	return true
}

// Drop ends the slot, and returns how many the caller has to free: 1 or 0.
func (s *Slot) Drop() int {
	if s == nil || !s.end(0) {
		return 0
	}
	s.net.Stop()
	return 1
}

// forgotten ends the slot of a permit that the garbage collector has found. It runs concurrently
// and notifies no call: the bucket's next operation uses the slot.
func (s *Slot) forgotten() { s.end(1) }
