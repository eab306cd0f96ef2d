package store

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// world is a bucket, the calls through it, and its history so far. It is small enough for
// a copy at every node of a search.
type world struct {
	*setting
	real     time.Duration // true time, which no clock of a store bends
	off      time.Duration // how far the store's clock is off
	ahead    time.Duration // how far the kept state is ahead of that clock
	since    time.Duration // real time of the last wobble back; 0: there is none to come forward from
	stood    time.Duration // the longest that the dial has stood and then come forward
	state    State
	version  int
	calls    [8]visit
	n        int
	left     [8]int8 // the calls that have left, in order
	out      int
	versions [4]int8 // the index of each version among the setting's shapes
	pauses   int
	events   int           // holds, refusals, changes, steps back, resumes so far
	late     bool          // a call has left after its place
	changed  time.Duration // when the limits were changed, by the dial
	booked   time.Duration // the last place that was booked then
	untidy   bool          // a call has given back, or paid more, in a way that may make others wait
	oops     error
}

// setting says what a world is made of.
type setting struct {
	name   string
	shapes [][]Limit // the first is in force at the start
	costs  []Units
	steps  []time.Duration
	holds  []time.Duration
	fates  []int // of a booked call: how many tolerances late it leaves; dead: it never leaves
	ops    string
	events int           // most holds, refusals, changes, ... in one history
	fills  int           // most fills
	depth  int           // most operations
	tau    time.Duration // lateness up to this is on time
	// headroom is the fraction that some calls keep free; 0: none does.
	headroom float64
	// lenient lets a call leave that became due during a hold, however far the dial
	// has gone past its place meanwhile.
	lenient bool

	spare    State // for probe
	compared int64 // waits that were compared with the shortest lawful ones
}

const dead = 2

type visit struct {
	Charge
	place      time.Duration // as booked
	cost       Units         // as acquired
	used       Units
	fate       int8
	version    int8
	gone       bool          // it has left, at when
	over       bool          // it will not leave: given back or void
	settled    bool          // it has said what it cost, at told
	inFlight   bool          // it was booked for when it came
	kept       bool          // it was to keep the headroom free
	by         time.Duration // void by a Resume that its process has not heard of: it leaves then
	passed     bool          // its place had passed by then in a hold, so that it leaves late
	when, told time.Duration
}

func newWorld(s *setting) *world {
	w := &world{setting: s, real: 1000 * time.Second}
	for _, limits := range s.shapes {
		for i := range limits {
			if limits[i].Name == "" {
				limits[i].Name = fmt.Sprint(i)
			}
		}
	}
	w.state = New(w.real, len(s.shapes[0]))
	return w
}

// become makes w a copy of another world, which shares nothing with it.
func (w *world) become(other *world) {
	parts := w.state.Parts
	*w = *other
	w.state.Parts = become(parts, other.state.Parts)
}

// become makes parts equal to others, which it shares nothing with, and allocates little.
func become(parts, others []Part) []Part {
	parts = slices.Grow(parts[:0], len(others))[:len(others)]
	for i := range parts {
		slots := parts[i].Slots[:0]
		parts[i] = others[i]
		parts[i].Slots = append(slots, parts[i].Slots...)
	}
	return parts
}

// probe returns a copy of the state, until the next one.
func (w *world) probe() *State {
	s := &w.spare
	parts := s.Parts
	*s = w.state
	s.Parts = become(parts, w.state.Parts)
	return s
}

func (w *world) now() time.Duration { return w.real + w.off }
func (w *world) limits() []Limit    { return w.shapes[w.versions[w.version]] }

// do makes a move. The error says what the move has broken.
func (w *world) do(m move) error {
	before, life := w.state, w.state.Born
	passed := time.Duration(0)
	switch m.op {
	case 'f', 'k':
		w.fill(int(m.a), m.b, m.op == 'k')
	case 's':
		w.settle(&w.calls[m.a], int(m.b))
	case 'u':
		w.giveBack(&w.calls[m.a])
	case 'h':
		var c *Charge
		if m.a >= 0 {
			c = &w.calls[m.a].Charge
		}
		w.state.Hold(w.limits(), w.holds[m.b], c, true)
	case 'r':
		i, epoch := m.a, w.state.Epoch
		if i < 0 {
			i = w.left[w.out-1]
		} else {
			epoch = w.calls[i].Epoch
		}
		w.state.Refused(w.limits(), epoch, w.holds[m.b], 0, &w.calls[i].Charge)
	case 'p':
		w.state.Pause(w.limits(), w.holds[m.b])
		w.pauses++
	case 'd':
		w.state.Hold(w.limits(), w.holds[m.b], nil, false)
	case 'y':
		w.state.Succeeded(w.state.Epoch)
	case 'e':
		for i := range w.n {
			c := &w.calls[i]
			in, _ := w.state.Due(c.place + time.Duration(c.fate)*max(w.tau, time.Millisecond))
			if !c.gone && !c.over && c.fate != dead && in < MaxReplyAge && w.ahead == 0 && w.state.Dial()-c.place <= w.tau+10 {
				c.by, c.passed = w.real+in, w.state.Dial()-c.place > 10
			}
		}
		w.state.Resume(w.limits())
	case 'b':
		switch m.a {
		case 0:
			w.off -= Wobble
			if w.since > 0 && w.real-w.since < Wobble { // twice is more than a wobble
				w.since = 0
			} else {
				w.since = w.real
			}
		case 1:
			w.off -= Wobble + time.Microsecond
			w.since = 0
		default:
			w.off += Wobble
			passed = w.real - w.since // while the dial stood
			w.since, w.stood = 0, max(w.stood, passed)
		}
	case 'c':
		w.change(int(m.a))
	case 'x':
		w.state, w.ahead, w.since = New(w.now(), len(w.limits())), 0, 0
		w.untidy = w.untidy || w.version > 0 // changed counts by a dial that is gone
	case 't':
		passed = w.steps[m.b]
	}
	if m.op != 'f' && m.op != 'k' && m.op != 'p' && m.op != 's' && m.op != 'u' && m.op != 'y' && m.op != 'x' && m.op != 't' {
		w.events++
	}
	if life != w.state.Born { // the bookings of another life are void
		for i := range w.n {
			if c := &w.calls[i]; !c.gone && (c.by == 0 || m.op != 'e') {
				c.over = true
			}
		}
	}
	if m.op == 't' {
		w.pass(passed)
	} else {
		w.pass(0)
	}
	if w.oops != nil {
		return w.oops
	}
	if life == w.state.Born {
		// During a hold the dial may be ahead by as much as is left of the hold.
		if w.state.Dial() < before.Dial() {
			return fmt.Errorf("dial went back from %v to %v", before.Dial(), w.state.Dial())
		}
		if ran := w.state.Dial() - max(0, w.state.Rem) - before.Dial() + max(0, before.Rem); ran > passed {
			return fmt.Errorf("dial ran %v in %v", ran, passed)
		}
	}
	if err := w.lawful(); err != nil {
		return err
	}
	if err := w.prompt(); err != nil {
		return err
	}
	return w.sound()
}

// fits returns the units that a call takes of the limits in force, and whether it can ever
// go.
func (w *world) fits(cost int) (n Units, ok bool) {
	for i, l := range w.limits() {
		if n[i] = w.costs[cost][i]; n[i] > l.Capacity {
			return n, false // ErrTooLarge
		}
	}
	return n, n != (Units{}) // else ErrInvalid
}

func (w *world) fill(cost int, fate int8, kept bool) {
	n, ok := w.fits(cost)
	if !ok {
		return
	}
	c, needs := &w.calls[w.n], n
	if kept {
		needs = Needs(w.limits(), &n, w.headroom)
	}
	was := w.probe()
	real, _, ok := w.state.Fill(w.limits(), &n, &needs, 0, &c.Charge)
	if ok != (real == 0) || !ok && !sameStates(*was, w.state) {
		w.oops = fmt.Errorf("a gate with a wait of %v: filled %v, changed %v", real, ok, !sameStates(*was, w.state))
		return
	}
	if !ok && kept {
		return
	}
	if c.inFlight, c.kept = ok, kept; kept {
		w.leavesRoom(c, &n)
	} else if !ok {
		most := real
		if w.fixed() { // no booking counts on its end
			most = farthest
		}
		again, _, ok := w.state.Fill(w.limits(), &n, &n, most, &c.Charge)
		if !ok && w.fixed() {
			return // no call can be booked for then
		}
		if !ok || again != real && !(again > real && w.fixed()) {
			w.oops = fmt.Errorf("a fill refused with %v is refused again with %v", real, again)
			return
		}
	}
	c.Number = int64(w.version)
	c.place, c.cost, c.used, c.fate, c.version = c.Place, n, n, fate, int8(w.version)
	for i := range w.n {
		if o := &w.calls[i]; !o.over && o.Born == c.Born && o.place > c.place {
			w.oops = fmt.Errorf("booked for %v after a call at %v", c.place, o.place)
		}
	}
	w.n++
}

// leavesRoom checks that a call that keeps a fraction free leaves now, and that calls which take all
// of the fraction would leave now as well.
func (w *world) leavesRoom(c *visit, n *Units) {
	var free Units
	for i, l := range w.limits() {
		if n[i] > 0 {
			free[i] = math.Floor(l.Capacity * w.headroom)
		}
	}
	if wait, _, ok := w.probe().Wait(w.limits(), &free); c.Place != w.state.Dial() || !ok || wait > 0 {
		w.oops = fmt.Errorf("%v after %v, with %v kept free, for which others wait %v", *n, c.Place-w.state.Dial(), free, wait)
	}
}

func (w *world) settle(c *visit, how int) {
	used := c.cost
	for i := range w.limits() {
		switch how {
		case 0:
			used[i] = 0
		case 1:
			used[i] = math.Floor(c.cost[i]) / 2
		default:
			used[i] = c.cost[i] * 1.5
		}
	}
	w.untidy = true
	w.state.Settle(w.limits(), &c.Charge, &used)
	again := w.probe()
	w.state.Settle(w.limits(), &c.Charge, &Units{})
	if w.oops == nil && !sameStates(*again, w.state) {
		w.oops = fmt.Errorf("settled twice: levels %v, then %v", again.Level[:2], w.state.Level[:2])
	}
	c.settled, c.told = true, w.real
	for i := range used {
		c.used[i] = min(c.cost[i], used[i]) // the law does not cover units beyond the cost
	}
	c.over = c.over || how == 0
}

func (w *world) giveBack(c *visit) {
	w.untidy = w.untidy || w.state.Rem >= 0 || w.version > int(c.version) // in a hold or at its end; a limit that is gone might show another booking
	for i := w.n - 1; &w.calls[i] != c; i-- {
		w.untidy = w.untidy || w.calls[i].N != (Units{})
	}
	if !w.state.Undo(w.limits(), &c.Charge) {
		w.state.Settle(w.limits(), &c.Charge, &Units{})
	}
	c.over = true
}

func (w *world) change(to int) {
	old, limits := w.limits(), w.shapes[to]
	w.changed, w.booked = w.state.Dial(), w.state.Dial()+w.state.Last
	void := w.state.Last > MaxReplyAge
	for i := range old {
		w.untidy = w.untidy || i >= len(limits) || !old[i].same(&limits[i]) || old[i].Kind == Fixed && old[i].Window != limits[i].Window
	}
	// leaked cannot tell by how much a limit was raised for which others wait.
	w.untidy = w.untidy || void || w.state.Last > 0 && (len(limits) > len(old) || len(old) > 1)
	w.version++
	w.versions[w.version] = int8(to)
	w.state.Change(old, limits, int64(w.version))
	for i := range w.n {
		if c := &w.calls[i]; void && !c.gone && c.place > w.state.Dial()+MaxReplyAge {
			c.over = true
		}
	}
}

// advance keeps the state, as a store does, and looks at it again.
func (w *world) advance() {
	w.state.Keep(w.ahead)
	w.ahead = w.state.Advance(w.limits(), w.now())
}

// pass lets real time pass. The booked calls leave when they are due.
func (w *world) pass(d time.Duration) {
	end := w.real + d
	for {
		w.advance()
		next, who := end, -1
		for i := range w.n {
			c := &w.calls[i]
			if c.gone || c.over {
				continue
			}
			in, _ := w.state.Due(c.place + time.Duration(c.fate)*max(w.tau, time.Millisecond))
			t := w.real + in + w.ahead
			if c.by > 0 {
				t = c.by
			}
			if t < next || t == next && who < 0 {
				next, who = t, i
			}
		}
		w.real = next
		w.advance()
		if who < 0 {
			return
		}
		c := &w.calls[who]
		late := w.state.Dial() - c.place
		if c.by > 0 {
			late, w.late = 0, w.late || c.fate > 0 || c.passed
		} else if late < 0 || w.state.Rem > 0 {
			w.oops = fmt.Errorf("due %v early, with a hold of %v", -late, w.state.Rem)
			return
		}
		if c.fate == dead || late > w.tau+10 && !(w.lenient && w.pauses == 0) {
			w.giveBack(c)
			continue
		}
		w.late = w.late || late > 10
		c.gone, c.when = true, w.real
		w.left[w.out] = int8(who)
		w.out++
	}
}
