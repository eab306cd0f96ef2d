package outbound

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// call is the permit of whatever is not the fast path.
type call struct {
	bucket *Bucket
	slot   *slot // the place among the calls at once; nil: none
	mu     sync.Mutex
	charge Charge // mu protects it and the flags, against a Done beside a late answer
	flags  uint8
}

// slot is a place among the calls at once. It ends with Done, or, as a safety
// net, when nobody holds the permit any more, so that nobody could call Done.
type slot struct {
	bucket *Bucket
	ended  atomic.Bool
	net    runtime.Cleanup
}

func (b *Bucket) newCall(c *Charge) *call {
	k := &call{bucket: b, charge: *c}
	k.hold()
	return k
}

// hold notes the slot that the booking has taken.
func (k *call) hold() {
	if l := k.bucket.slow.Load(); l.slots > 0 {
		k.slot = &slot{bucket: k.bucket}
		k.slot.net = runtime.AddCleanup(k, (*slot).forgotten, k.slot)
	}
}

func (s *slot) end() {
	if s != nil && !s.ended.Swap(true) {
		s.net.Stop()
		s.bucket.release()
	}
}

// forgotten runs beside the program: it only counts, and the bucket's next
// operation makes use of it.
func (s *slot) forgotten() {
	if !s.ended.Swap(true) {
		s.bucket.slow.Load().lost.Add(1)
	}
}

// once sets a flag and reports whether it, or Done, had not been set before.
func (k *call) once(flag uint8) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flags&(flag|flagDone) != 0 {
		return false
	}
	k.flags |= flag
	return true
}

func (k *call) Settle(used Cost) {
	if !used.real() || !k.once(flagSettled) || used == k.charge.Cost {
		return
	}
	if used == (Cost{}) {
		k.once(flagRefused)
	}
	k.report(Report{Kind: Settled, Used: used})
}

func (k *call) Refused(d time.Duration) {
	if !k.once(0) {
		return
	}
	k.once(flagRefused)
	k.report(Report{Kind: Refused, Wait: max(0, d), Epoch: k.charge.Epoch})
}

func (k *call) Hold(d time.Duration) {
	if d > 0 && k.once(0) {
		k.report(Report{Kind: Held, Wait: d})
	}
}

func (k *call) Done() {
	k.mu.Lock()
	was := k.flags
	k.flags |= flagDone
	k.mu.Unlock()
	if was&flagDone != 0 {
		return
	}
	if was&flagRefused == 0 {
		k.bucket.succeeded(k.charge.Epoch)
	}
	k.slot.end()
}

func (k *call) report(r Report) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r.Charge = &k.charge
	k.bucket.report(r)
}
