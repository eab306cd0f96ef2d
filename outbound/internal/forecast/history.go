package forecast

import (
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// mark is what was used of a quota just after calls had left.
type mark struct {
	at   time.Duration // by the store's clock, or by the key's for a window
	used float64       // in all, in earlier periods too
	n    int           // looks that have found more or less than the look before
}

// history is how a quota was used.
type history struct {
	marks []mark        // the latest last
	last  mark          // the latest change
	begin mark          // of the period, or of the key's life
	seen  time.Duration // the latest look
	end   time.Duration // of the period, as seen then
}

// note takes in the level of limit i. Marks are at least a step apart.
func (h *history) note(limits []store.Limit, s *store.State, i int, step, basis time.Duration) {
	p, at, level := &s.Parts[i], s.At, s.Level[i]
	begin := at - (s.Dial() - p.Begin)
	if limits[i].Kind.Calendar() {
		begin = at - (s.Unix - p.Begin)
	}
	begin = min(at, max(begin, s.Born))
	switch {
	case at < h.seen && h.seen-at < time.Minute: // replies may cross
		return
	case h.last.n == 0, at < h.seen, at < h.end && level < (h.last.used-h.begin.used)/2: // a lost key begins again
		*h = history{last: mark{at, level, 1}, begin: mark{begin, 0, 0}}
	case at >= h.end: // what was taken between the last look and the end is unknown
		h.begin = mark{begin, h.last.used, h.last.n}
	}
	h.seen, h.end = at, at+s.Empty(limits, i)
	used := h.begin.used + level
	if used == h.last.used {
		return
	}
	h.last = mark{at, used, h.last.n + 1}
	if n := len(h.marks); n == 0 || at-h.marks[n-1].at >= step {
		h.marks = append(h.marks, h.last)
		h.thin(basis)
	}
}

// thin drops marks: the further back, the fewer are needed, and one beyond the basis.
func (h *history) thin(basis time.Duration) {
	kept := h.marks[:0]
	for k, m := range h.marks {
		if k+1 < len(h.marks) {
			next := h.marks[k+1].at
			if age := h.last.at - next; age >= basis || len(kept) > 0 && next-kept[len(kept)-1].at < age/16 {
				continue
			}
		}
		kept = append(kept, m)
	}
	h.marks = kept
}

// sliding returns how a window was used, which has what left in it.
func sliding(s *store.State, l *store.Limit, i int) *history {
	h := new(history)
	for _, t := range s.Parts[i].Slots {
		if at := t.End - l.Window; t.End > s.Dial() && at <= s.Dial() {
			h.last = mark{at, h.last.used + t.Units, h.last.n + 1}
			h.marks = append(h.marks, h.last)
		}
	}
	if len(h.marks) > 0 {
		h.begin = h.marks[0]
	}
	return h
}

// pace returns the units a second of the shortest time that is as long as what is foreseen by it,
// and of the basis at most. until returns how long until the quota is used up at a pace. If that is
// sure at any pace, it needs no evidence.
func (h *history) pace(at, basis time.Duration, sure bool, until func(pace float64) time.Duration) (pace float64, in time.Duration) {
	since := func(m mark) (long time.Duration) {
		k, used := float64(h.last.n-m.n), h.last.used-m.used
		long, pace = at-m.at, 0
		each := time.Duration(0)
		if k > 0 && used > 0 { // the next change is as far away as they were apart, unless it has been longer already
			over := max(h.last.at-m.at, time.Duration(float64(long)*k/(k+1)))
			pace, each = used/over.Seconds(), time.Duration(float64(over)/k)
		}
		if in = until(pace); in != Never {
			in = max(1, in-min(at-h.last.at, each))
		}
		return long
	}
	enough := func(long time.Duration) bool {
		return in != Never && (sure || float64(long) >= evidence*float64(in))
	}
	long := time.Duration(0)
	in = Never
	for _, m := range slices.Backward(h.marks) {
		if at <= m.at {
			continue
		}
		if long = since(m); long >= min(in, basis) {
			return pace, in
		}
	}
	if enough(long) || enough(since(h.begin)) {
		return pace, in
	}
	return pace, Never
}
