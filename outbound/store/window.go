package store

import (
	"math"
	"slices"
	"time"
)

const (
	// parts is how many parts a window has. What leaves in one of them counts until a window after
	// the last of it.
	parts = 64
	// maxSlots is the most slots of a window: those of the past, and as many with reservations.
	maxSlots = 2 * parts
)

// window is the law of windows: at most Capacity units leave in any interval of length Window.
type window struct{}

func (window) scripted(k Kind) bool { return k == Window }

func (window) shaped(l *Limit) bool {
	w := l.Window.Seconds()
	return l.Zone == "" && l.Window >= parts && l.Rate > 0 && l.Rate <= maxRate && w < 1.01*maxDrain && math.Abs(l.Capacity/l.Rate-w) <= 1e-9*w
}

func (window) look(s *State, l *Limit, i int, onward bool) {
	dial, sum := s.Dial(), 0.
	slots := s.Parts[i].Slots
	if onward && (len(slots) == 0 || slots[0].End > dial) { // no slot has ended
		return
	}
	for k := len(slots) - 1; k >= 0 && slots[k].End > dial; k-- {
		sum += slots[k].Units
	}
	if sum == 0 || math.Abs(sum-s.Level[i]) > l.Capacity*1e-12 { // else it is rounding, and a key counts as its copy
		s.Level[i] = sum
	}
}

func (window) leak(*State, *Limit, int, float64) {}

func (window) wait(s *State, l *Limit, i int, n float64, w time.Duration) (time.Duration, bool) {
	sum, dial := s.Level[i]+n, s.Dial()
	if l.Fits(sum) {
		return w, true
	}
	slots := s.Parts[i].Slots
	for k := range slots {
		if slots[k].End <= dial {
			continue
		}
		w = max(w, slots[k].End-dial)
		if sum -= slots[k].Units; l.Fits(sum) {
			break
		}
	}
	return w, true
}

// fill adds a call to the newest slot, unless the call is a part of a window or more after the last
// call of the slot before it. So no slot has calls that are a part of a window apart.
func (law window) fill(s *State, l *Limit, i int, n float64, w time.Duration, c *Charge) {
	p := &s.Parts[i]
	c.Y[i] = p.Ret + n
	if n == 0 {
		return
	}
	p.Ret += n
	for len(p.Slots) > 0 && p.Slots[0].End <= s.Dial()-max(0, s.Rem) { // a Resume sets the dial back to when the hold began
		p.Slots = slices.Delete(p.Slots, 0, 1)
	}
	end := s.Dial() + w + l.Window
	k := p.find(end)
	switch {
	case k < len(p.Slots) && p.Slots[k].End-end < l.Window/parts:
	case k >= 2 && end-p.Slots[k-2].End < l.Window/parts:
		k--
		p.Slots[k].End = end
	default:
		p.insert(Slot{end, n})
		law.look(s, l, i, false)
		return
	}
	p.Slots[k].Units += n
	s.Level[i] += n
}

// find returns the index of the first slot that does not end before a time of the dial. There are
// later slots than that of the last call if the reservations in them are void.
func (p *Part) find(end time.Duration) int {
	k := len(p.Slots)
	for k > 0 && p.Slots[k-1].End >= end {
		k--
	}
	return k
}

// insert adds a slot. If there are too many then, the two neighbours that are closest together
// become one, which ends as the later of them.
func (p *Part) insert(t Slot) {
	n := len(p.Slots)
	if n == cap(p.Slots) { // most windows fill 65, and append alone would allocate 128
		p.Slots = append(make([]Slot, 0, n+max(4, n/4)), p.Slots...)
	}
	if p.Slots = slices.Insert(p.Slots, p.find(t.End), t); n < maxSlots {
		return
	}
	least := 0
	for k := range n {
		if p.Slots[k+1].End-p.Slots[k].End < p.Slots[least+1].End-p.Slots[least].End {
			least = k
		}
	}
	p.Slots[least+1].Units += p.Slots[least].Units
	p.Slots = slices.Delete(p.Slots, least, least+1)
}

// take takes units out of a slot, and the slot if it is empty then.
func (p *Part) take(l *Limit, k int, units float64) {
	if p.Slots[k].Units -= units; p.Slots[k].Units <= l.Capacity*0.5e-9 {
		p.Slots = slices.Delete(p.Slots, k, k+1)
	}
}

// undo leaves the end of the slot as it is: after a Resume it is unknown when the other calls left.
func (law window) undo(s *State, l *Limit, i int, c *Charge) {
	p := &s.Parts[i]
	k := min(p.find(c.Place+l.Window), len(p.Slots)-1)
	if c.N[i] == 0 || k < 0 {
		return
	}
	p.Ret -= c.N[i]
	p.take(l, k, c.N[i])
	law.look(s, l, i, false)
}

// settle returns all that a call has not used, as if those units had never left.
func (law window) settle(s *State, l *Limit, i int, c *Charge, more float64, known bool) {
	p := &s.Parts[i]
	place := c.Place
	if !known {
		place = s.Dial()
	}
	k := p.find(place + l.Window) // the call is in this slot
	found := k < len(p.Slots) && (known || p.Slots[k].End-place-l.Window < l.Window/parts)
	switch {
	case more > 0 && found:
		p.Slots[k].Units += more
	case more > 0 && place+l.Window > s.Dial():
		p.insert(Slot{place + l.Window, more})
	case more < 0 && known && found && place >= p.Begin && place+l.Window > s.Dial()-max(0, s.Rem): // else its slot may be forgotten
		p.take(l, k, min(-more, p.Slots[k].Units))
	}
	law.look(s, l, i, false)
}

// since counts none of what may be reserved for later.
func (law window) since(s *State, l *Limit, i int, c *Charge) float64 {
	later := 0.
	for _, t := range s.Parts[i].Slots {
		if t.End-l.Window > s.Dial() {
			later += t.Units
		}
	}
	return max(0, s.Parts[i].Ret-c.Y[i]-later) + 1e-6
}

// freed is 0: a reservation behind counts on the distance of the one ahead of it, so in a hold the
// dial may pass none.
func (window) freed(*Limit, float64) float64 { return 0 }

// hold lets age what had left when the hold began: the API's window goes on in a hold. A slot with
// a call that may still leave does not age. Calls from before then return nothing, because their
// slots cannot be found by their times.
func (window) hold(s *State, l *Limit, i int, began, stands time.Duration, _ float64) {
	p := &s.Parts[i]
	gone := began - BookingGrace
	for k := range p.Slots {
		if p.Slots[k].End-l.Window >= gone {
			break
		}
		p.Slots[k].End = sub(p.Slots[k].End, stands)
	}
	p.Begin = max(p.Begin, gone)
}

func (law window) behind(s *State, l *Limit, i int, n float64, w time.Duration) time.Duration {
	turns := math.Ceil(n/l.Capacity*(1-1e-9)) - 1
	at, _ := law.wait(s, l, i, min(n-float64(turns*l.Capacity), l.Capacity), w)
	return l.after(min(at, w+l.Window), turns) // void reservations may end later, when the first of n is free again
}

func (window) slides() bool { return true }

// void leaves what is counted: a caller whose reservation is void returns it.
func (window) void(*State, *Limit, int) bool { return true }

// cut takes the calls out that leave after a time of the dial. A slot that also has other calls
// keeps its units.
func (law window) cut(s *State, l *Limit, i int, dial time.Duration) {
	p := &s.Parts[i]
	for k := range p.Slots {
		if p.Slots[k].End-l.Window > dial {
			if k == 0 || p.Slots[k-1].End-l.Window < dial {
				p.Slots[k].End = dial + l.Window
				k++
			}
			p.Slots = p.Slots[:k]
			break
		}
	}
	law.look(s, l, i, false)
}

// resume lets what is reserved soon count until a window after a process can have let it leave.
func (law window) resume(s *State, l *Limit, i int, back, _, _ time.Duration) {
	p := &s.Parts[i]
	if s.filled(i) { // which is the first slot
		p.Slots = slices.DeleteFunc(p.Slots, func(t Slot) bool { return t.End <= l.Window })
	}
	dial := s.Dial()
	law.cut(s, l, i, dial+MaxReplyAge)
	end := dial - back + l.Window
	for k := range p.Slots {
		if at := p.Slots[k].End - l.Window; at > dial || back > 0 && at > dial-BookingGrace { // it waits for the end of a hold
			p.Slots[k].End = end + MaxReplyAge
		} else {
			p.Slots[k].End = min(p.Slots[k].End, end)
		}
	}
	p.Begin = 0
}

func (law window) change(s *State, old, l *Limit, i int) bool {
	p := &s.Parts[i]
	if l.Window != old.Window {
		law.cut(s, old, i, s.Dial()+MaxReplyAge) // nothing of it is returned
	}
	for k := range p.Slots {
		p.Slots[k].End += l.Window - old.Window
	}
	law.look(s, l, i, false)
	return l.Window == old.Window
}

// shares is short, because what leaves later is later in each window.
func (window) shares(l *Limit) time.Duration { return max(1, min(shareTime, l.Window/200)) }

func (window) share(l *Limit, whole float64) {
	if l.Capacity < whole {
		l.Capacity, l.Window = whole, time.Duration(min(whole/l.Rate, maxDrain)*1e9)
	}
	l.Rate = l.Capacity / l.Window.Seconds()
}

func (window) owes(_ *Limit, n, level float64, _ time.Duration) float64 { return min(n, level) }

func (window) empty(s *State, l *Limit, i int) (dial, real time.Duration) {
	if slots := s.Parts[i].Slots; len(slots) > 0 {
		return slots[len(slots)-1].End - s.Dial(), 0
	}
	return 0, 0
}
