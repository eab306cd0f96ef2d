package outbound

import (
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// call is the permit of whatever is not the fast path.
type call struct {
	bucket   *Bucket
	slot     *slot // the place among the calls at once; nil: none
	mu       sync.Mutex
	flags    uint8 // mu protects it and charge, against a Done beside a late answer
	admitted time.Time
	cost     [1]Cost // as acquired; one each, for an Op to point to
	charge   [1]leak.Charge
	order    uint64 // among the tickets of one Booking
	version  int64  // of the limits that it was booked under, as a ticket
}

// once sets flags and reports whether none of them had been set before, and
// there is a call at all.
func (k *call) once(flags uint8) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flags&(flags|flagVoid) != 0 {
		return false
	}
	k.flags |= flags
	return true
}

func (k *call) Settle(used Cost) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !used.real() || k.flags&(flagSettled|flagVoid) != 0 {
		return
	}
	k.flags |= flagSettled
	if used == k.cost[0] {
		return
	}
	if used == (Cost{}) {
		k.flags |= flagFailed
	}
	k.bucket.settle(report{Report: leak.Report{Kind: leak.Settled, Charge: &k.charge[0]}, used: used, cost: k.cost[0]})
}

func (k *call) Answered(a Answer) { k.answered(a) }

func (k *call) Done() {
	k.mu.Lock()
	was := k.flags
	k.flags |= flagDone
	k.mu.Unlock()
	if was&flagDone != 0 {
		return
	}
	if was&flagFailed == 0 {
		k.bucket.succeeded(k.charge[0].Epoch)
	}
	k.slot.end()
}
