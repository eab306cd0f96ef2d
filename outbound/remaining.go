package outbound

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// soon is a reset that is not worth a hold. Whoever keeps a short window's limit sees
// at its very end that nothing remains, and a reset in whole seconds then takes up to a
// second, or two, of the next window.
const soon = 2 * time.Second

// Remaining says what the API has told with the answer: so many units of its quota
// remain until the reset, which is in so much time. A number below 0: it did not
// tell of that unit. If those who have left since this call will use that up, all
// who share the bucket wait until the reset. It never makes anybody faster.
//
// A reset in 2 s or less holds nobody: most of those come just before it anyway, and to
// wait for whole seconds would leave up to two thirds of a short window unused.
//
// It is for quotas that come back all at once. One that leaks has room again long
// before its reset. Most calls cost little: only what is so little that the calls
// since could have used it up is reported to the bucket.
func (p *Permit) Remaining(left Cost, reset time.Duration) { p.remaining(left, reset) }

// remaining is Remaining, and reports whether it has held the bucket, as far as is
// known: a [Call] of somebody else does not tell.
func (p *Permit) remaining(left Cost, reset time.Duration) (held bool) {
	if p == nil || reset <= soon || !left.told() {
		return false
	}
	if b := p.bucket; b != nil {
		n := left[b.unitOf()]
		return n >= 0 && n <= b.capacity+b.rate*(now()-time.Duration(p.place)).Seconds() &&
			b.remaining(report{Report: leak.Report{Charge: p.charge(), Wait: reset}, used: left})
	}
	// By their types: whoever embeds a *Permit has its unexported methods, too, and
	// may have a Remaining that is to be asked.
	switch k := p.call.(type) {
	case *call:
		return k.remaining(left, reset)
	case *observed:
		return k.remaining(left, reset)
	case *Permit:
		return k.remaining(left, reset)
	case interface {
		Remaining(Cost, time.Duration)
	}:
		k.Remaining(left, reset)
	case nil:
	default:
		if left.none() {
			p.Because(ReasonExhausted)
			k.Hold(reset)
			return true
		}
	}
	return false
}

// remaining reports to the bucket what remains, and whether that has held it, or for
// longer: the hold then ends at the reset, and no later, and did not end there before.
func (b *Bucket) remaining(told report) (held bool) {
	told.Kind, told.Reason = leak.Left, uint8(ReasonExhausted)
	reports := [1]report{told}
	var r reply
	if err := b.do(context.Background(), "report", &step{reports: reports[:]}, &r); err != nil {
		return false
	}
	return r.extended && r.State.Rem >= told.Wait-moved && r.State.Rem <= later(told.Wait, moved)
}

// hold is when a bucket's hold ends, as was last heard of it.
type hold struct {
	until atomic.Int64 // the store's time; 0: there is none
	born  atomic.Int64 // of the life in which that is so
}

// extends takes in a state, and reports whether its hold has begun since the last one or
// ends later.
func (h *hold) extends(s *leak.State) bool {
	until := int64(0)
	if s.Rem > 0 {
		until = int64(later(s.At, s.Rem))
	} else if h.until.Load() == 0 {
		return false
	}
	was, born := h.until.Swap(until), h.born.Swap(int64(s.Born))
	return until != 0 && (was == 0 || born != int64(s.Born) || until > int64(later(time.Duration(was), moved)))
}

// told reports whether the API has told of any unit, and makes -1 of the numbers that
// tell nothing: below 0, NaN, infinite.
func (c *Cost) told() bool {
	any := false
	for i := range c {
		if c[i] >= 0 && c[i] <= math.MaxFloat64 {
			any = true
		} else {
			c[i] = -1
		}
	}
	return any
}

// none reports whether nothing remains of something.
func (c *Cost) none() bool {
	for i := range c {
		if c[i] == 0 {
			return true
		}
	}
	return false
}

func (k *call) remaining(left Cost, reset time.Duration) (held bool) {
	if !k.once(0) {
		return false
	}
	limits := k.bucket.ledger().force.Load().own
	for i := range limits {
		l := &limits[i]
		if n := left[l.Unit]; n >= 0 && n <= l.Capacity+l.LeakRate*time.Since(k.admitted).Seconds() {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.bucket.remaining(report{Report: leak.Report{Charge: &k.charge[0], Wait: reset}, used: left})
		}
	}
	return false
}

// remaining tells of a hold only if that has changed: most of what remains holds nobody,
// and of calls that tell of the same reset the first does.
func (o *observed) remaining(left Cost, reset time.Duration) (held bool) {
	o.once(0, 0, func(p *Permit) { held = p.remaining(left, reset) })
	if held {
		o.tell(Event{Kind: EventHeld, Hold: reset, Reason: ReasonExhausted})
	}
	return held
}
