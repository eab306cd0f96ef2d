package watch

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// held is for how long a bucket has been held, and how fast it is, as far as it was told.
type held struct {
	mu    sync.Mutex
	total time.Duration // of the holds that are over
	since time.Duration // when the hold began that is in force; 0: none is
	until time.Duration // when it ends
}

// note takes a change in.
func (h *held) note(c *outbound.Event, at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch c.Kind {
	case outbound.EventHeld:
		h.endLocked(at)
		h.since, h.until = max(1, at), at+min(c.Hold, 1<<62-at)
	case outbound.EventExtended:
		if h.since > 0 {
			h.until = at + min(c.Hold, 1<<62-at)
		}
	case outbound.EventReleased, outbound.EventResumed:
		h.endLocked(at)
	}
}

// end ends the hold that is in force.
func (h *held) end(at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endLocked(at)
}

// endLocked ends the hold that is in force.
func (h *held) endLocked(at time.Duration) {
	if h.since > 0 {
		h.total += max(0, min(at, h.until)-h.since)
	}
	h.since = 0
}

// time returns for how long the bucket has been held in all.
func (h *held) time(at time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.since > 0 {
		return h.total + max(0, min(at, h.until)-h.since)
	}
	return h.total
}

// mostEvents is how many events a board remembers.
const mostEvents = 100

// events are the latest changes, the latest last.
type events []Event

// last returns the index of the latest event of a name; below 0: there is none.
func (e events) last(name string) int {
	for i := len(e) - 1; i >= 0; i-- {
		if e[i].Name == name {
			return i
		}
	}
	return -1
}

// storms reports whether many changes of a kind may come in a row, which are one event then.
func storms(k string) bool {
	switch k {
	case outbound.EventHeld, outbound.EventReleased, outbound.EventResumed, outbound.EventLimits:
		return false
	}
	return true
}

// note takes a change of a limiter's bucket in. times is how often the name had been added when the limiter was.
func (b *Board) note(s *shown, times int, c *outbound.Event) {
	b.mu.Lock()
	former := s.times != times
	b.mu.Unlock()
	if former {
		return
	}
	s.held.note(c, now())
	e := Event{At: time.Now(), Name: s.name, Kind: c.Kind, Words: wordsOf(c), Times: 1}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := b.events.last(s.name); i >= 0 && b.events[i].Kind == e.Kind && storms(c.Kind) {
		e.Times += b.events[i].Times
		b.events = slices.Delete(b.events, i, i+1)
	}
	if len(b.events) >= mostEvents {
		b.events = slices.Delete(b.events, 0, len(b.events)-mostEvents+1)
	}
	b.events = append(b.events, e)
}

// wordsOf says what has changed.
func wordsOf(c *outbound.Event) string {
	why := ""
	if c.Reason != "" {
		why = " (" + c.Reason + ")"
	}
	switch c.Kind {
	case outbound.EventHeld:
		return "no call goes for " + brief(c.Hold) + why
	case outbound.EventExtended:
		return "no call goes for another " + brief(c.Hold) + why
	case outbound.EventReleased:
		return "calls go again, after " + brief(c.Hold)
	case outbound.EventResumed:
		return "somebody has ended the hold and the slow-down"
	case outbound.EventSlowed:
		return fmt.Sprintf("the API refuses calls: they go at %.3g %% of the speed", 100*c.Speed)
	case outbound.EventLimits:
		return "the limits were changed"
	case outbound.EventForgotten:
		return count(uint64(max(0, c.Calls)), "call ended without Done, and kept its place until now", "calls ended without Done, and kept their places until now")
	case outbound.EventLate:
		if c.Calls == 1 {
			return fmt.Sprintf("a place passed %s before this process came to use it", brief(c.Late))
		}
		return fmt.Sprintf("%d places passed before this process came to use them, the latest by %s", c.Calls, brief(c.Late))
	}
	return c.Kind
}
