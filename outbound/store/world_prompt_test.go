package store

import (
	"fmt"
	"time"
)

// shortest returns the shortest lawful wait of a call of n. It does not use the arithmetic
// under test: ideal buckets replay all calls that have left or are booked, at their
// places. The call goes after all of them, because order of booking is order of
// departure.
func (w *world) shortest(n *Units) time.Duration {
	dial, least := w.state.Dial(), time.Duration(0)
	for i, l := range w.limits() {
		if l.Kind != Leaky {
			least = max(least, w.shortestInWindow(i, &l, n[i], least))
			continue
		}
		level, at := 0.0, time.Duration(0)
		for k := range w.n {
			c := &w.calls[k]
			if c.N == (Units{}) { // given back
				continue
			}
			level = max(0, level-w.leaked(i, at, c.place)) + c.N[i]
			at = c.place
		}
		least = max(least, at-dial)
		if n[i] > 0 {
			if at < dial { // from now on it leaks at today's rate
				level, at = max(0, level-w.leaked(i, at, dial)), dial
			}
			least = max(least, at-dial+l.Above(level+n[i], l.Capacity))
		}
	}
	return least
}

// shortestInWindow is shortest for a window, by the exact log of all calls. Of a Fixed one all
// comes back when it ends, if it is known when it began; else shortestUnsure is.
func (w *world) shortestInWindow(i int, l *Limit, n float64, least time.Duration) time.Duration {
	dial := w.state.Dial()
	for k := range w.n {
		least = max(least, w.calls[k].place-dial)
	}
	if n == 0 {
		return least
	}
	begin, known := w.begun(i, l)
	if l.Kind == Fixed && !known {
		return w.shortestUnsure(i, l, n, least)
	}
	sum := n
	for k := w.n - 1; k >= 0; k-- {
		place := w.calls[k].place
		if known && place < begin {
			break
		}
		if sum += w.calls[k].N[i]; sum > l.Capacity {
			if known {
				place = begin
			}
			return max(least, place+l.Window-dial)
		}
	}
	return least
}

// shortestUnsure is shortest for a Fixed limit of which it is unknown when the API's window began:
// all calls count until a window after the last.
func (w *world) shortestUnsure(i int, l *Limit, n float64, least time.Duration) time.Duration {
	var sum float64
	end := time.Duration(-farthest)
	for k := range w.n {
		c := &w.calls[k]
		if c.cost[i] == 0 {
			continue
		}
		if c.place >= end {
			sum = 0
		}
		sum += c.N[i]
		end = max(end, c.place+l.Window)
	}
	if dial := w.state.Dial(); dial < end && (sum+n > l.Capacity || dial+least >= end-2*spread) {
		return max(least, end-dial)
	}
	return least
}

// begun returns when the API's window of a Fixed limit began: with a call that went at once when
// the one before was over, by its begin or by all calls. After a call that may have begun one as
// well it is not known.
func (w *world) begun(i int, l *Limit) (begin time.Duration, known bool) {
	if l.Kind != Fixed || w.version > 0 {
		return 0, false
	}
	latest := time.Duration(-farthest)
	for k := range w.n {
		c := &w.calls[k]
		switch undone := c.N == (Units{}); {
		case c.Born != w.state.Born: // the store has lost the key
			return 0, false
		case c.cost[i] == 0:
		case c.inFlight && (known && c.place >= begin+l.Window || c.place >= latest+l.Window):
			begin, known, latest = c.place, !undone, c.place
		case known && c.place >= begin+l.Window-2*spread || undone && known && c.place == begin:
			known, latest = false, c.place
		default:
			latest = c.place
		}
	}
	return begin, known
}

// leaked returns the units that run past limit i between two times of the dial. A lowered
// rate counts from the change on, and a raised one once the calls have gone that were
// booked before the change.
func (w *world) leaked(i int, from, to time.Duration) float64 {
	rate := w.limits()[i].Rate
	if old := w.shapes[w.versions[0]]; w.version > 0 && i < len(old) {
		since := w.changed
		if rate > old[i].Rate {
			since = max(since, w.booked)
		}
		before := max(0, min(to, since)-from)
		return old[i].Rate*before.Seconds() + rate*(to-from-before).Seconds()
	}
	return rate * (to - from).Seconds()
}

// prompt checks that no call waits longer than the law demands. It does not look where the
// law has calls wait for safety: after a hold, a second change of limits, a step of the
// clock or a settle, and after a place was given back while others were booked behind it.
func (w *world) prompt() error {
	if w.events > w.version || w.version > 1 || w.untidy {
		return nil
	}
	if shows := w.state.Dial() - max(0, w.state.Rem); w.events == 0 && shows != w.real-w.state.Born {
		return fmt.Errorf("after %d pauses the dial shows %v less than real time", w.pauses, w.real-w.state.Born-shows)
	}
	for k := range w.costs {
		n, ok := w.fits(k)
		if !ok {
			continue
		}
		w.compared++
		told, _, _ := w.state.Wait(w.limits(), &n)
		least, coarse := w.shortest(&n), time.Duration(0)
		for _, limits := range w.shapes {
			for i := range limits {
				if limits[i].Kind != Leaky { // two calls within a part of the window end together
					coarse = max(coarse, limits[i].Window/parts)
				}
			}
		}
		if w.pauses > 0 && w.state.Last > 0 { // what is booked in one leaves a moment after it
			coarse += time.Microsecond
		}
		if told > least+10+coarse {
			return fmt.Errorf("%v waits %v, and could go after %v", n, told, least)
		}
	}
	return nil
}

// fixed reports whether a limit in force is a Fixed one.
func (w *world) fixed() bool {
	for _, l := range w.limits() {
		if l.Kind == Fixed {
			return true
		}
	}
	return false
}
