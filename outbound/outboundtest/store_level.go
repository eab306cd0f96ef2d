package outboundtest

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// never is less than the wait of a call that can never leave, and more than any other.
const never = 140 * 365 * 24 * time.Hour

var levelCases = []storeCase{
	{sentence: "at most the capacity leaves in one burst, however many ask", check: checkCapacity},
	{sentence: "a key that was idle admits its capacity and no more", check: checkIdle},
	{sentence: "levels leak at the rate", check: checkLeaks},
	{sentence: "a cost above a capacity can never leave", check: checkTooLarge},
	{sentence: "all limits of a call are charged, or none", check: checkTogether},
	{sentence: "a settle returns only units that are there and not promised to others", check: checkSettles},
	{sentence: "a cost above what was acquired is added", check: checkSettlesMore},
	{sentence: "the reports are carried out in their order, and then the action", check: checkOrder},
	{sentence: "a meter fills up to the capacity but never below what is booked", check: checkMeters},
	{sentence: "keys of any bytes are keys of their own", check: checkKeys},
	{sentence: "long waits do not overflow", check: checkLongWaits},
	{sentence: "nothing is charged when ctx is done", check: checkCancelled},
}

func checkCapacity(e *exam) {
	key, limits := e.key(), []store.Limit{slow(100)}
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 20 {
				r, err := e.store.Update(bg, key, &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}})
				if err != nil {
					e.failf("%v", err)
				}
				admitted.Add(int64(len(r.Charges)))
			}
		})
	}
	all.Wait()
	if n := admitted.Load(); n != 100 {
		e.failf("%d of 1000 calls were admitted, want 100", n)
	}
}

func checkIdle(e *exam) {
	p := e.process(leaky(5, 1000))
	p.admit(5)
	time.Sleep(50 * time.Millisecond)
	if r := p.levels(0); r.State.Level[0] != 0 {
		e.failf("after ten times the time to drain its level is %v", r.State.Level[0])
	}
	p.refuse(5.01)
	p.admit(5)
}

func checkLeaks(e *exam) {
	p := e.process(leaky(100, 10))
	before := time.Now()
	p.admit(100)
	filled := time.Now()
	time.Sleep(100 * time.Millisecond)
	asked := time.Now()
	level := p.levels().State.Level[0]
	most, least := 100-10*asked.Sub(filled).Seconds(), 100-10*time.Since(before).Seconds()
	if level > most+0.1 || level < least-0.1 {
		e.failf("level %v, want %v to %v", level, least, most)
	}
}

func checkTooLarge(e *exam) {
	p := e.process(slow(10), named(slow(20), 1, "tokens"))
	if r := p.refuse(11, 1); r.Limit != 0 || r.Wait < never {
		e.failf("11 of 10: refused by limit %d for %v", r.Limit, r.Wait)
	}
	if r := p.refuse(1, 50); r.Limit != 1 || r.Wait < never {
		e.failf("50 of 20: refused by limit %d for %v", r.Limit, r.Wait)
	}
	p.levels(0, 0)
}

func checkTogether(e *exam) {
	p := e.process(slow(10), named(slow(5), 1, "b"), named(slow(100), 2, "c"))
	p.admit(1, 5, 10)
	if r := p.refuse(1, 1, 1); r.Limit != 1 {
		e.failf("refused by limit %d, want 1", r.Limit)
	}
	p.levels(1, 5, 10)
	p.admit(1, 0, 1)
	p.levels(2, 5, 11)
}

func checkSettles(e *exam) {
	p := e.process(slow(10))
	first, second := p.admit(6), p.admit(4)
	p.settle(first, 2)
	p.levels(6)
	p.settle(first, 0) // only the first settle counts
	p.levels(6)
	p.admit(4)
	p.settle(second, 0)
	p.levels(6)
	// Units that have leaked are not returned.
	quick := e.process(leaky(10, 1000))
	call := quick.admit(10)
	time.Sleep(30 * time.Millisecond)
	quick.settle(call, 0)
	quick.levels(0)
}

func checkSettlesMore(e *exam) {
	p := e.process(slow(10))
	p.settle(p.admit(4), 25)
	p.levels(25)
	if r := p.refuse(1); r.Wait < 16*36000*time.Second-time.Minute {
		e.failf("retry after %v, want 160h", r.Wait)
	}
}

func checkOrder(e *exam) {
	p := e.process(slow(10))
	p.admit(4)
	p.admit(6)
	r := p.do(func(charges []store.Charge) store.Op {
		return store.Op{Action: store.Book, Costs: []store.Units{{10}}, Reports: []store.Report{
			{Kind: store.Settled, Charge: &charges[0]}, {Kind: store.Settled, Charge: &charges[1]},
		}}
	})
	if len(r.Charges) != 1 {
		e.failf("two calls of 10 units are returned, and a call of 10 is refused for %v", r.Wait)
	}
	r = p.step(store.Op{Reports: []store.Report{{Kind: store.Paused, Wait: time.Hour, Reason: 1}, {Kind: store.Held, Wait: 2 * time.Hour, Reason: 2}}})
	if r.State.Rem != 2*time.Hour || r.State.Why != 2 {
		e.failf("held for %v with reason %d, want 2h with 2", r.State.Rem, r.State.Why)
	}
}

func checkMeters(e *exam) {
	p := e.process(slow(3))
	meter := func(cost, level float64, full bool) {
		e.Helper()
		r := p.step(store.Op{Action: store.Meter, Costs: []store.Units{{cost}}})
		if math.Abs(r.State.Level[0]-level) > 0.01 || r.Full[0] != full {
			e.failf("filled by %v: level %v, full %v; want %v, %v", cost, r.State.Level[0], r.Full[0], level, full)
		}
	}
	meter(1, 1, false)
	meter(1.5, 2.5, false)
	meter(2, 3, true)
	meter(1000, 3, true)
	if r := p.levels(3); r.Full[0] {
		e.failf("full in a reply that filled nothing")
	}
	p.reserve(2)
	meter(1, 5, true)
}

func checkKeys(e *exam) {
	prefix := e.key()
	for _, k := range []string{
		"key", "Key", "KEY", "key ", " key", "key\t", "key\n", "\u00e9", "e\u0301", "E\u0301", "K", "\u212a", "\ufb01", "fi", "stra\u00dfe", "strasse",
		"", "\x00", "a\x00b", "a\x00", "\xff\xfe", "{x}", "}{x", "a:b", "a b\r\nSET x", strings.Repeat("k", 1<<20), strings.Repeat("k", 1<<20) + "l",
	} {
		p := e.process(slow(1))
		p.name = prefix + k
		p.admit(1)
		p.refuse(1)
	}
}

func checkLongWaits(e *exam) {
	p := e.process(leaky(1, 1/(50*365.25*24*3600.)))
	p.admit(1)
	for range 10 {
		p.step(store.Op{Action: store.Book, Costs: []store.Units{{1}}, Wait: math.MaxInt64})
	}
	if r := p.refuse(1); r.Wait < 40*365*24*time.Hour {
		e.failf("retry after %v", r.Wait)
	}
}

func checkCancelled(e *exam) {
	p := e.process(slow(10))
	ctx, cancel := context.WithCancel(bg)
	cancel()
	for _, action := range []store.Action{store.Book, store.Meter} {
		_, err := e.store.Update(ctx, p.name, &store.Op{Limits: p.limits, Action: action, Costs: []store.Units{{1}}})
		if !errors.Is(err, context.Canceled) {
			e.failf("%v: %v", action, err)
		}
	}
	p.levels(0)
}
