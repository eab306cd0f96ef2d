package store

import (
	"math"
	"slices"
	"time"
)

// MinLease and MaxLease bound [Ask.Lease]. DefaultLease is that of a program that sets none.
const (
	MinLease     = 3 * time.Second
	MaxLease     = time.Hour
	DefaultLease = 30 * time.Second
)

const (
	mostHolders = 1024
	mostSlots   = math.MaxInt32 / 2
	// A holder that waits asks again after at least soon. The one that is next waits for at most
	// next, and any other for at most late.
	soon, next, late = 5 * time.Millisecond, 50 * time.Millisecond, 5 * time.Second
)

// Holders are the processes that hold slots of a limit on calls in flight, or wait for some. They
// do not change: a step makes new ones. The slots are the capacity of the key's first limit. All
// times are times of the leases.
type Holders struct {
	Dial time.Duration // now: the store's time, but no step adds more than a third of a lease
	Last time.Duration // the latest grant
	Shut time.Duration // nothing is granted before
	All  []Holder      // who was granted slots last, or came last, stands last
}

// Holder is one bucket in one process.
type Holder struct {
	ID    uint64
	Held  int           // slots that it has
	Waits bool          // it waits for more
	Asked time.Duration // its last ask; with the lease it says until when the slots are its own
	Lease time.Duration
}

// Ask is what a process reports of its slots, all of it each time. So the next ask makes up for a
// lost one. Safety has four conditions. A process counts a returned slot as gone before the ask
// leaves, and its asks are carried out in order. It starts no call later than half a lease after
// the last answered ask was sent, and Keep is true. An ask which changes nothing is not written for
// a sixth of a lease, and a step of the store's clock counts as a third of one at most: that is the
// other half.
type Ask struct {
	ID    uint64        // random, of this process and bucket
	Looks bool          // the ask changes nothing, whatever it wants
	Keep  int           // the slots that it goes on with
	Want  int           // the calls that could start with more
	Stays bool          // those calls wait if there is none
	Known bool          // its lease runs: if the key does not know it, the key has lost data
	Lease time.Duration // the lease that it relies on
	// Headroom is the fraction of the slots that stays free after a grant: see [Limit.Headroom].
	Headroom float64
}

// Allotment is the answer to an [Ask].
type Allotment struct {
	Held  int           // the slots that the process has
	Keep  int           // as many of them it may use for its next calls; it returns the rest as its calls end
	Free  int           // the slots that no process has; below zero: the processes hold more than there are
	Other bool          // other processes wait
	Again time.Duration // when to ask again, if its calls wait

	Others, Largest int // other processes that have slots, and how many one of them has at most
}

// step carries an ask out, e after the last step that was written. There are n slots. It returns h
// itself if nothing has changed.
func (h *Holders) step(a *Ask, n int, e time.Duration) (*Holders, Allotment) {
	var was, t Holders
	if h != nil {
		was = *h
	}
	lease := a.Lease
	for i := range was.All {
		lease = min(lease, was.All[i].Lease)
	}
	t = was
	t.Dial += min(max(0, e), lease/3)
	t.All = slices.DeleteFunc(slices.Clone(was.All), func(o Holder) bool { return t.Dial-o.Asked >= o.Lease })
	changed := len(t.All) < len(was.All)
	i := slices.IndexFunc(t.All, func(o Holder) bool { return o.ID == a.ID })
	looks := a.Looks || a.ID == 0 || // which no process has
		i < 0 && len(t.All) >= mostHolders
	if i < 0 && !looks {
		if i, changed = len(t.All), true; a.Known { // others may be missing too, and say within a sixth of a lease what they hold
			t.Shut = t.Dial + a.Lease/3
		}
		t.All = append(t.All, Holder{ID: a.ID, Asked: t.Dial, Lease: a.Lease})
	}
	var me, before Holder
	if !looks {
		before = t.All[i]
		me = Holder{ID: a.ID, Held: min(max(0, a.Keep), mostSlots), Waits: a.Want > 0 && a.Stays, Asked: before.Asked, Lease: a.Lease}
		t.All[i] = me // its number counts, even if there are too many then
	}
	q := t.shares(i, n)
	got := 0
	if !looks && t.Dial >= t.Shut && !(q.others > 0 && me.Held < before.Held) { // a process that returns slots for other processes gets none in the same step
		kept := int((&Limit{Capacity: float64(n)}).Headroom(max(0, a.Headroom)))
		got = min(max(0, a.Want), max(0, q.free-kept), q.free)
		if q.others > 0 {
			got = min(got, max(1, int(math.Ceil(q.share)))-me.Held)
			if !a.Stays { // a call that does not wait overtakes none that does
				got = min(got, q.free-q.others)
			}
		}
	}
	if got > 0 {
		me.Held, me.Waits, q.free, q.ahead = me.Held+got, me.Waits && got < a.Want, q.free-got, q.others
		t.All, t.Last = append(slices.Delete(t.All, i, i+1), me), t.Dial
	}
	r := Allotment{Held: me.Held, Keep: me.Held, Free: q.free, Other: q.theirs > 0, Others: q.holders, Largest: q.largest}
	if q.free < 0 {
		r.Keep = 0
	} else if q.others > 0 && t.Dial >= t.Shut {
		r.Keep = min(me.Held, int(q.share))
	}
	r.Again = min(t.again(&me, n, &q), lease/6) // a step of the clock counts as a third of a lease at most
	if looks {
		return h, r
	}
	if changed = changed || me.Held != before.Held || me.Waits != before.Waits || me.Lease != before.Lease || t.Dial-before.Asked >= lease/6; !changed {
		return h, r
	}
	i = slices.IndexFunc(t.All, func(o Holder) bool { return o.ID == me.ID })
	t.All[i].Asked = t.Dial
	return &t, r
}

// queue is how the slots are shared among those that wait.
type queue struct {
	free    int     // slots that no process has
	waiting int     // processes that wait
	held    int     // the slots that these have
	theirs  int     // of those that wait, all but the one that asks
	share   float64 // of each that waits: what they have, and what is free
	others  int     // all but the one that asks that wait and have less than their share
	ahead   int     // of these, those that stand before it
	holders int     // all but the one that asks that have slots
	largest int     // the most that one of these has
}

// shares returns the queue of the holder i; below zero: of one that has none.
func (h *Holders) shares(i, n int) queue {
	q := queue{free: n}
	for j := range h.All {
		o := &h.All[j]
		if j != i && o.Held > 0 {
			q.holders, q.largest = q.holders+1, max(q.largest, o.Held)
		}
		if q.free -= o.Held; o.Waits {
			q.waiting, q.held = q.waiting+1, q.held+o.Held
			if j != i {
				q.theirs++
			}
		}
	}
	q.share = float64(max(0, q.free+q.held)) / float64(max(1, q.waiting))
	for j := range h.All {
		if o := &h.All[j]; j != i && o.Waits && float64(o.Held) < max(1, q.share) {
			if q.others++; j < i || i < 0 {
				q.ahead++
			}
		}
	}
	return q
}

// again returns when a holder that waits asks again: the further back it stands, the later. By the
// time since the latest grant the holders know how often slots become free.
func (h *Holders) again(me *Holder, n int, q *queue) time.Duration {
	since, behind := min(h.Dial-h.Last, MaxLease), q.ahead-max(0, q.free)
	switch {
	case float64(me.Held) >= max(1, q.share) && (q.others > 0 || q.free+q.held >= n): // it has its share
		return min(max(100*time.Millisecond, time.Duration(q.waiting)*soon), late)
	case behind < 1:
		return min(max(since/8, soon), next)
	}
	return min(max(since*time.Duration(behind)/2, soon), late)
}

// allot carries out an ask, e after the last step that was written, and reports whether it has
// changed the key.
func (s *Stored) allot(a *Ask, e time.Duration, r *Reply) bool {
	if r.Corrupt { // what was held is unknown
		s.Holders = &Holders{Shut: a.Lease / 3}
	}
	h, allotment := s.Holders.step(a, int(min(s.Limits[0].Capacity, mostSlots)), e)
	changed := h != s.Holders
	s.Holders, r.Allotment = h, allotment
	return changed
}

// sound reports whether Apply can have left h so.
func (h *Holders) sound() bool {
	if h == nil {
		return true
	}
	ok := h.Dial >= 0 && possible(h.Dial) && h.Last >= 0 && h.Last <= h.Dial && h.Shut >= 0 && h.Shut <= h.Dial+MaxLease && len(h.All) <= mostHolders
	for i := range h.All {
		o := &h.All[i]
		ok = ok && o.ID != 0 && o.Held >= 0 && o.Held <= 2*mostSlots && o.Asked >= 0 && o.Asked <= h.Dial && o.Lease >= MinLease && o.Lease <= MaxLease
	}
	return ok
}

// expire returns for how long the key is kept for its holders. A clock that steps forward by less
// than an hour drops none of them.
func (h *Holders) expire() time.Duration {
	if h == nil || len(h.All) == 0 {
		return 0
	}
	return MaxLease + slices.MaxFunc(h.All, func(a, b Holder) int { return int(a.Lease/time.Millisecond) - int(b.Lease/time.Millisecond) }).Lease
}
