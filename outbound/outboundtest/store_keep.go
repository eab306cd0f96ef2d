package outboundtest

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var keepCases = []storeCase{
	{sentence: "a key is not forgotten before Expire", check: checkExpires},
	{sentence: "a key is not forgotten before Expire of a step that does nothing", check: checkExpiresStale},
	{sentence: "limits that were set outlive the levels", check: checkKeepsLimits},
	{sentence: "the store keeps all that the next step needs", check: checkHistory},
	{sentence: "the store keeps all that the next step of a window or a calendar needs", check: checkWindowHistory},
}

// crowd uses some other keys, because a store may look then for keys to forget.
func (e *exam) crowd() {
	e.Helper()
	for range 20 {
		e.process(slow(1)).admit(1)
	}
}

// checkExpires fills a key by a little and then by more, and does not touch it while most of that
// leaks. A store that has kept the first Expire forgets the key too soon.
func checkExpires(e *exam) {
	p := e.process(leaky(100, 250))
	before := time.Now()
	p.admit(5)
	p.admit(95)
	for range 4 {
		time.Sleep(60 * time.Millisecond)
		e.crowd()
	}
	asked := e.ask(p.name, &store.Op{Limits: p.limits})
	if least := 100 - 250*time.Since(before).Seconds(); asked.State.Level[0] < least-0.2 {
		e.failf("level %v after %v; want at least %v", asked.State.Level[0], time.Since(before), least)
	}
}

// checkExpiresStale is expires, but the last step counts by limits that are not in force.
func checkExpiresStale(e *exam) {
	p := e.process(leaky(100, 250))
	before := time.Now()
	p.admit(100)
	if r := e.ask(p.name, &store.Op{Limits: []store.Limit{slow(1), named(slow(1), 1, "b")}}); !r.Stale {
		e.failf("a step by two limits where one is in force is not stale")
	}
	for range 3 {
		time.Sleep(60 * time.Millisecond)
		e.crowd()
	}
	asked := e.ask(p.name, &store.Op{Limits: p.limits})
	if least := 100 - 250*time.Since(before).Seconds(); asked.State.Level[0] < least-0.2 {
		e.failf("level %v after %v; want at least %v", asked.State.Level[0], time.Since(before), least)
	}
}

// checkKeepsLimits waits until there is nothing to be kept but the limits.
func checkKeepsLimits(e *exam) {
	own := leaky(10, 1000)
	p := e.process(own)
	p.levels(0)
	p.replace(leaky(5, 1000))
	p.admit(5)
	for range 3 {
		time.Sleep(90 * time.Millisecond)
		e.crowd()
	}
	again := p.beside(own)
	if r := again.refuse(6); r.Wait < never || r.Number != 2 {
		e.failf("of a capacity that was set to 5, 6 are refused for %v by limits of number %d", r.Wait, r.Number)
	}
}

// A draw is what a random history can do, with its weight.
type draw struct {
	what string
	n    int
}

// checkHistory draws anything that can be done with leaky limits.
func checkHistory(e *exam) {
	begin := []string{"book", "book", "settle last", "settle", "meter", "book", "book", "lower", "resume", "reserve", "hold", "wait", "reserve", "back", "raise"}
	draws := []draw{
		{"book", 4}, {"reserve", 3}, {"back", 1}, {"back any", 1}, {"move", 2}, {"settle", 3}, {"settle last", 1}, {"success", 2}, {"refused", 1},
		{"hold", 1}, {"pause", 1}, {"wait", 4}, {"meter", 1}, {"resume", 1}, {"lower", 1}, {"raise", 1}, {"remaining", 1}, {"claim", 1},
	}
	e.tryHistory(draws, begin, func() *process {
		return e.process(store.Limit{Capacity: 10, Rate: 2}, store.Limit{Capacity: 30, Rate: 1, Unit: 1, Name: "tokens"})
	})
}

// checkWindowHistory draws what can be done with a key that has a limit of each kind. All
// reservations are whole microseconds, as is a sixty-fourth of each window, and no call waits for
// the leaky limit: a store that keeps microseconds may else find a call in another slot.
func checkWindowHistory(e *exam) {
	draws := []draw{
		{"book", 4}, {"reserve", 2}, {"back", 1}, {"back any", 1}, {"move", 1}, {"settle", 2}, {"wait", 5}, {"meter", 1}, {"resume", 1}, {"hold", 1}, {"pause", 1},
	}
	e.tryHistory(draws, nil, func() *process {
		return e.dated(1000, moving(8, 64*time.Millisecond), fixed(16, 128*time.Millisecond), daily(400), store.Limit{Name: "leaky", Unit: 1, Capacity: 10_000, Rate: 100})
	})
}

// tryHistory draws histories. A store that loses a reply repeats the step, and then returns the
// time of the repetition, so the replies differ. So a history that differs is drawn again, on a new
// key, before it counts.
func (e *exam) tryHistory(draws []draw, begin []string, make func() *process) {
	const tries = 5
	for seed := range uint64(4) {
		for try := range tries {
			p := make()
			p.silent = try < tries-1
			h := &story{process: p, r: rand.New(rand.NewPCG(7, seed)), begin: begin}
			for _, d := range draws {
				h.draws = append(h.draws, slices.Repeat([]string{d.what}, d.n)...)
			}
			for i := 0; i < 80 && !p.failed; i++ {
				h.next(i)
			}
			if !p.failed {
				break
			}
		}
	}
}

// story is a random history of a key.
type story struct {
	*process
	r     *rand.Rand
	draws []string
	begin []string // the first steps
	claim float64
}

// next does the next thing, and looks at the result.
func (h *story) next(i int) {
	what := h.draws[h.r.IntN(len(h.draws))]
	if i < len(h.begin) {
		what = h.begin[i]
	}
	var cost, used store.Units
	for j := range h.limits {
		cost[j], used[j] = float64(h.r.IntN(5)), float64(h.r.IntN(5))
	}
	if i < len(h.begin) {
		cost, used = store.Units{4, 3}, store.Units{}
	}
	d := time.Duration(1+h.r.IntN(8)) * time.Millisecond
	pick, n := 0, len(h.charges[0])
	if n > 0 {
		pick = max(0, n-1-h.r.IntN(6))
	}
	if i < len(h.begin) && what == "settle" {
		pick = 0
	}
	settle := store.Report{Kind: store.Settled, Used: used}
	switch what {
	case "book":
		h.step(store.Op{Action: store.Book, Costs: []store.Units{cost}})
	case "reserve":
		h.step(store.Op{Action: store.Book, Costs: []store.Units{cost, used}, Wait: 1000 * time.Hour, Horizon: time.Duration(h.r.IntN(2)) * time.Hour, After: time.Duration(h.r.IntN(2)) * d})
	case "claim":
		r := h.step(store.Op{Action: store.Book, Costs: []store.Units{cost, cost, cost}, Wait: time.Hour, Claim: h.claim, Weight: float64(h.r.IntN(3))})
		if h.claim = r.Claim; h.claim == 0 {
			h.claim = math.Inf(1)
		}
	case "wait":
		time.Sleep(d + time.Duration(h.r.IntN(5000))*time.Microsecond)
	case "meter":
		h.step(store.Op{Action: store.Meter, Costs: []store.Units{used}})
	case "resume":
		h.step(store.Op{Action: store.Resume})
	case "hold":
		h.report(-1, store.Report{Kind: store.Held, Wait: d, Reason: uint8(i)})
	case "pause":
		h.report(-1, store.Report{Kind: store.Paused, Wait: d, Reason: uint8(i)})
	case "lower":
		h.replace(store.Limit{Capacity: 4, Rate: 3}, h.limits[1])
	case "raise":
		h.replace(store.Limit{Capacity: 12, Rate: 2}, h.limits[1])
	}
	if n > 0 {
		switch what {
		case "back":
			h.back(n - 1)
		case "back any":
			h.back(pick)
		case "move":
			h.move(n-1, store.Op{Costs: []store.Units{cost}})
		case "settle last":
			h.report(n-1, settle)
			h.mark(n-1, used)
		case "settle":
			h.report(pick, settle)
			h.mark(pick, used)
		case "success":
			h.report(pick, store.Report{Kind: store.Succeeded})
		case "refused":
			h.report(pick, store.Report{Kind: store.Refused, Wait: d, MaxWait: 40 * time.Millisecond, Reason: uint8(i)})
		case "remaining":
			h.report(pick, store.Report{Kind: store.Remaining, Used: used, Wait: d})
		}
	}
	h.step(store.Op{Slots: true})
}

// mark marks a call as its process does after a settle.
func (p *process) mark(call int, used store.Units) {
	for side := range p.charges {
		if p.failed {
			return
		}
		if c := &p.charges[side][call]; !c.Settled && c.N != used {
			c.N, c.Settled = used, true
		}
	}
}
