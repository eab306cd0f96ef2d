package outboundtest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var slotCases = []storeCase{
	{sentence: "slots are counted by what each process says of its own", check: checkSlotsAsked},
	{sentence: "at most as many slots are held as there are, however many ask", check: checkSlotsInUse, workers: 4},
}

// checkSlotsAsked makes processes ask, return and look in any order. They have one store: a
// request that changed nothing, and arrives again before the next one of its store, may be carried
// out again.
func checkSlotsAsked(e *exam) {
	p := e.process(slow(5))
	var have [4]int
	for range 60 {
		i := rand.IntN(len(have))
		have[i] -= rand.IntN(have[i] + 1)
		op := store.Op{Action: store.Allot, Ask: store.Ask{ID: uint64(i) + 1, Keep: have[i], Want: rand.IntN(4), Stays: i > 0, Lease: store.DefaultLease}}
		if rand.IntN(8) == 0 {
			op.Ask.Looks, op.Ask.ID = true, op.Ask.ID*uint64(rand.IntN(2))
			p.step(op)
			continue
		}
		have[i] = p.step(op).Allotment.Held
	}
	p.replace(slow(2))
	for i := range have {
		p.step(store.Op{Action: store.Allot, Ask: store.Ask{ID: uint64(i) + 1, Keep: have[i], Want: 1, Lease: store.DefaultLease}})
	}
}

// checkSlotsInUse has many processes take slots and give them back at the same time.
func checkSlotsInUse(e *exam) {
	const n = 3
	key, limits := e.key(), []store.Limit{slow(n)}
	var all sync.WaitGroup
	var used, most, got atomic.Int64
	stores := e.workers()
	for id := range 2 * len(stores) {
		all.Go(func() {
			ask := func(a store.Ask) store.Allotment {
				a.ID, a.Stays, a.Lease = uint64(id)+1, a.Want > 0, store.DefaultLease
				r, err := stores[id%len(stores)].Update(bg, key, &store.Op{Limits: limits, Action: store.Allot, Ask: a})
				if err != nil {
					e.failf("%v", err)
				}
				return r.Allotment
			}
			for range 15 {
				if held := int64(ask(store.Ask{Want: 2}).Held); held > 0 {
					got.Add(held)
					for sum, old := used.Add(held), most.Load(); sum > old && !most.CompareAndSwap(old, sum); old = most.Load() {
					}
					used.Add(-held)
				}
				ask(store.Ask{})
			}
		})
	}
	all.Wait()
	if most.Load() > n || got.Load() == 0 {
		e.failf("%d slots were held at a time, of %d, and %d were granted", most.Load(), n, got.Load())
	}
}
