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
	reason   Reason
	most     time.Duration // that a hold is doubled to
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
	if !used.real() || !k.once(flagSettled) || used == k.cost[0] {
		return
	}
	if used == (Cost{}) {
		k.once(flagRefused)
	}
	k.report(report{Report: leak.Report{Kind: leak.Settled}, used: used, cost: k.cost[0]})
}

func (k *call) Refused(d time.Duration) {
	if !k.once(0) {
		return
	}
	k.once(flagRefused)
	k.report(report{Report: leak.Report{Kind: leak.Refused, Wait: max(0, d), Epoch: k.charge[0].Epoch}})
}

// AtMost says how long the pause of the Refused that follow may become by doubling.
func (k *call) AtMost(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.most = max(0, d)
}

func (k *call) Hold(d time.Duration) {
	if d > 0 && k.once(0) {
		k.report(report{Report: leak.Report{Kind: leak.Held, Wait: d}})
	}
}

func (k *call) fail() { k.once(flagRefused) }

func (k *call) Done() {
	k.mu.Lock()
	was := k.flags
	k.flags |= flagDone
	k.mu.Unlock()
	if was&flagDone != 0 {
		return
	}
	if was&flagRefused == 0 {
		k.bucket.succeeded(k.charge[0].Epoch)
	}
	k.slot.end()
}

func (k *call) report(r report) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r.Charge, r.Most = &k.charge[0], k.most
	r.Reason = uint8(k.reason)
	k.bucket.report(r)
}
