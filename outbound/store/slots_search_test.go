package store

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// flaw is a rule of a process or a store that is broken on purpose.
type flaw int

const (
	sane          flaw = iota
	noFence            // an ask that is not written lets one that failed before it be carried out later
	unordered          // asks of a process are carried out in any order
	lowersLate         // a process counts what it gives back as gone when the answer comes
	clockInFull        // a step of the store's clock counts in full
	noMargin           // a process relies on its slots for a whole lease
	forgetsCalls       // a process says nothing of its calls in flight
	ignoresKeep        // a process starts calls in slots that are more than there are
	takesHeadroom      // an ask that keeps a fraction free is granted all slots
)

const lease = DefaultLease

// A slotWorld has a few processes that ask one key for slots, and a network between them.
type slotWorld struct {
	flaw   flaw
	n      int
	stored Stored
	now    time.Duration
	ahead  time.Duration // by which the store's clock is off
	jumps  int           // that it may still make
	jumped time.Duration // when it was set forward
	ids    uint64
	procs  []slotProc
	taken  error // a grant has not left free what it had to
}

// slotProc is a process: the rules of [Ask] for a user of slots, with nothing beside.
type slotProc struct {
	id      uint64
	have    int
	lower   int           // with lowersLate: what the ask that is out gives back
	over    bool          // there were more slots held than there are
	until   time.Duration // it starts no calls from then on
	calls   int           // in flight, and counted
	extra   int           // in flight, since before it was cut off for a lease
	reached time.Duration // when its last ask was carried out
	waiting *slotAsk      // its ask that is out; nil: none is
	lost    []*slotAsk    // that it has given up, and that may still be carried out, the earliest first
}

type slotAsk struct {
	Ask
	sent   time.Duration
	done   bool // it was carried out
	answer Allotment
}

func newSlotWorld(n, procs int, f flaw) *slotWorld {
	w := &slotWorld{flaw: f, n: n, now: time.Hour, jumps: 1, jumped: -1}
	for range procs {
		w.ids++
		w.procs = append(w.procs, slotProc{id: w.ids, reached: -lease})
	}
	return w
}

func (w *slotWorld) clone() *slotWorld {
	c := *w
	c.procs = append([]slotProc(nil), w.procs...)
	for i := range c.procs {
		p := &c.procs[i]
		if p.waiting != nil {
			a := *p.waiting
			p.waiting = &a
		}
		p.lost = append([]*slotAsk(nil), p.lost...) // which no longer change
	}
	return &c
}

// do does one of the things that may happen next, and returns what it was; "" if that cannot happen.
func (w *slotWorld) do(what, which int) string {
	p := &w.procs[which%len(w.procs)]
	switch what {
	case 0, 1, 2, 18: // asks: for one more slot, for nothing, or gives its idle slots back; for one more while half of all stay free
		if p.waiting != nil {
			return ""
		}
		idle, a := p.have-p.calls-p.extra, &slotAsk{sent: w.now}
		back := 0
		if what == 2 || w.now >= p.until || p.over {
			back = max(0, idle)
		}
		if what == 2 && back == 0 {
			return ""
		}
		a.Ask = Ask{ID: p.id, Keep: p.have - back, Known: w.now < p.until, Lease: lease}
		if p.lower = 0; w.flaw == lowersLate {
			p.lower = back
		} else {
			p.have -= back
		}
		if w.flaw == forgetsCalls {
			a.Keep = 0
		}
		if what == 0 {
			a.Want, a.Stays = 1, which%2 == 0
		} else if what == 18 {
			a.Want, a.Headroom = 1, 0.5
		}
		p.waiting = a
		return fmt.Sprintf("%d asks %+v", p.id, a.Ask)
	case 3: // its ask is carried out
		if p.waiting == nil || p.waiting.done {
			return ""
		}
		p.reached = w.now
		written := w.carry(p.waiting, len(p.lost) > 0 && w.flaw != noFence)
		if p.waiting.done = true; written && w.flaw != unordered {
			p.lost = nil
		}
		return fmt.Sprintf("%d has its ask carried out: %+v", p.id, p.waiting.answer)
	case 4: // it has the answer
		if p.waiting == nil || !p.waiting.done {
			return ""
		}
		a := p.waiting
		p.waiting, p.have = nil, p.have-p.lower+a.answer.Held-a.Keep
		p.over = a.answer.Free < 0 && w.flaw != ignoresKeep
		p.until = a.sent + lease/2
		if w.flaw == noMargin {
			p.until = a.sent + lease
		}
		if w.flaw != noFence && w.flaw != unordered {
			p.lost = nil // the contract of stores
		}
		return fmt.Sprintf("%d has the answer", p.id)
	case 5: // it gives the ask up
		if p.waiting == nil {
			return ""
		}
		if p.lower > 0 {
			p.have, p.lower = p.have-p.lower, 0
		}
		if !p.waiting.done {
			p.lost = append(append([]*slotAsk(nil), p.lost...), p.waiting)
		}
		p.waiting = nil
		return fmt.Sprintf("%d gives its ask up", p.id)
	case 6: // an ask that it has given up is carried out
		if len(p.lost) == 0 {
			return ""
		}
		a := *p.lost[0]
		p.lost = p.lost[1:]
		w.carry(&a, true)
		if a.ID == p.id {
			p.reached = w.now
		}
		return fmt.Sprintf("%d has a lost ask carried out: %+v", p.id, a.answer)
	case 7: // a call starts
		if p.have <= p.calls+p.extra || w.now >= p.until || p.over {
			return ""
		}
		p.calls++
		return fmt.Sprintf("%d starts a call", p.id)
	case 8: // a call ends
		if p.extra > 0 {
			p.extra--
		} else if p.calls > 0 {
			p.calls--
		} else {
			return ""
		}
		return fmt.Sprintf("%d ends a call", p.id)
	case 9: // it crashes, and is started again
		w.ids++
		was := p.id
		*p = slotProc{id: w.ids, reached: -lease, lost: p.lost}
		return fmt.Sprintf("%d crashes", was)
	case 10, 11, 12: // time passes
		d := [...]time.Duration{lease/6 - time.Millisecond, lease / 3, lease / 2, lease / 3, lease - time.Millisecond, lease / 2}[2*(what-10)+which%2]
		w.now += d
		w.age()
		return fmt.Sprintf("%v pass", d)
	case 15, 16, 17: // it asks and has the answer at once
		asked := w.do(what-15, which)
		if asked == "" || w.do(3, which) == "" || w.do(4, which) == "" {
			return ""
		}
		return asked + fmt.Sprintf(", and has %d", p.have)
	case 13, 14: // the store's clock is set
		if w.jumps == 0 {
			return ""
		}
		w.jumps--
		d := time.Duration(100*(2*what-27)) * time.Second
		if w.ahead += d; d > 0 {
			w.jumped = w.now
		}
		w.age()
		return fmt.Sprintf("the clock is set by %v", d)
	}
	return ""
}

const slotMoves = 19

// age counts no longer the calls of a process that has not reached the store for long.
func (w *slotWorld) age() {
	for i := range w.procs {
		p, own := &w.procs[i], lease-lease/6
		if p.reached <= w.jumped {
			own -= lease / 3
		}
		if w.now-p.reached >= own {
			p.calls, p.extra = 0, p.extra+p.calls
		}
	}
}

// carry has the store carry an ask out, and reports whether it was written.
func (w *slotWorld) carry(a *slotAsk, fence bool) bool {
	now := w.now + w.ahead
	limits := []Limit{{Capacity: float64(w.n), Rate: float64(w.n) / lease.Seconds()}}
	if more := now - w.stored.State.At - lease/3; w.flaw == clockInFull && w.stored.Holders != nil && more > 0 {
		h := *w.stored.Holders
		h.Dial += more
		w.stored.Holders = &h
	}
	was := w.stored
	ask := a.Ask
	if w.flaw == takesHeadroom {
		ask.Headroom = 0
	}
	r := (&Op{Limits: limits, Number: was.Number, Action: Allot, Ask: ask}).Apply(&w.stored, now)
	if r.Corrupt {
		panic("corrupt")
	}
	a.answer = r.Allotment
	free := w.n
	for _, h := range w.stored.Holders.All {
		free -= h.Held
	}
	if a.Headroom > 0 && a.answer.Held > a.Keep && free < w.n/2 {
		w.taken = fmt.Errorf("%d of %d slots free after a grant that keeps half of them", free, w.n)
	}
	return r.Changed || fence
}

// over returns what is wrong.
func (w *slotWorld) over() error {
	sum := 0
	for i := range w.procs {
		sum += w.procs[i].calls
	}
	if sum > w.n {
		return fmt.Errorf("%d calls in flight, of %d", sum, w.n)
	}
	return w.taken
}

// deepen visits all histories of so many moves, and counts them.
func (w *slotWorld) deepen(left int, path []string, nodes *int) error {
	for what := range slotMoves {
		for which := range len(w.procs) {
			if which > 1 && what >= 10 && what < 15 {
				break
			}
			next := w.clone()
			did := next.do(what, which)
			if did == "" {
				continue
			}
			*nodes++
			if err := next.over(); err != nil {
				return fmt.Errorf("%w after %q", err, append(path, did))
			}
			if left > 1 {
				if err := next.deepen(left-1, append(path, did), nodes); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// often are moves, as often as they are drawn. Most of those drawn cannot be made.
var often = [...]int8{0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 8, 8, 9, 10, 10, 11, 12, 13, 14, 15, 15, 15, 15, 15, 16, 16, 16, 17, 17, 17, 18, 18, 18}

// play plays random histories, of so many moves in all.
func (w *slotWorld) play(seed uint64, moves int) error {
	r := rand.New(rand.NewPCG(34, seed))
	for moves > 0 {
		next := w.clone()
		if r.IntN(2) == 0 {
			next.jumps = 0
		}
		var path []string
		for range 100 {
			what := int(often[r.IntN(len(often))])
			did := next.do(what, r.IntN(6))
			if did == "" {
				continue
			}
			moves--
			path = append(path, did)
			if err := next.over(); err != nil {
				return fmt.Errorf("%w after %q", err, path)
			}
		}
	}
	return nil
}

// At most n calls of all processes are in flight, except those that were in flight in a process when
// it had not reached the store for five sixths of a lease, or for half of one in which the store's
// clock was set forward: through lost and late asks, crashes, and clocks that are set. A grant that
// keeps a fraction free leaves it free.
func TestSlots_NoHistoryHasMoreCallsInFlight(t *testing.T) {
	depth, moves := 3, 600_000
	switch {
	case testing.Short() || raced:
		depth, moves = 2, 60_000
	case os.Getenv("DRIPFEED_LONG") != "":
		depth, moves = 5, 20_000_000
	}
	for n := 1; n <= 2; n++ {
		for procs := 2; procs <= 3; procs++ {
			nodes, w := 0, newSlotWorld(n, procs, sane)
			if err := w.deepen(depth, nil, &nodes); err != nil {
				t.Error(err)
			}
			if err := w.play(uint64(n*10+procs), moves/4); err != nil {
				t.Error(err)
			}
			t.Logf("n %d, %d processes: %d histories, %d random moves", n, procs, nodes, moves/4)
		}
	}
}

// The search finds each rule of the page that is broken.
func TestSlots_SearchFindsBrokenRules(t *testing.T) {
	if raced {
		t.Skip("a search of one goroutine")
	}
	for f, name := range map[flaw]string{noFence: "no fence", unordered: "no order", lowersLate: "lowered by the answer", clockInFull: "a step of the clock in full", noMargin: "no margin", forgetsCalls: "truth", ignoresKeep: "above n", takesHeadroom: "headroom"} {
		var err error
		for seed := range uint64(400) {
			if err = newSlotWorld(1+int(seed%4/3), 2+int(seed%2), f).play(seed, 10_000); err != nil {
				break
			}
		}
		if t.Logf("%s: %v", name, err); err == nil {
			t.Errorf("the search does not find %q", name)
		}
	}
}
