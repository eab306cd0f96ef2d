package outbound

import (
	"math"
	"time"
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
func (p *Permit) Remaining(left Cost, reset time.Duration) {
	if p == nil || reset <= soon || !left.told() {
		return
	}
	switch {
	case p.bucket != nil:
		b := p.bucket
		n := left[b.unitOf()]
		if n >= 0 && n <= b.capacity+b.rate*(now()-time.Duration(p.place)).Seconds() {
			b.report(Report{Kind: Left, Charge: p.charge(), Used: left, Wait: reset, Reason: ReasonExhausted})
		}
	case p.call != nil:
		if k, ok := p.call.(interface {
			Remaining(Cost, time.Duration)
		}); ok {
			k.Remaining(left, reset)
		} else if left.none() {
			p.Because(ReasonExhausted)
			p.call.Hold(reset)
		}
	}
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

func (k *call) Remaining(left Cost, reset time.Duration) {
	if !k.once(0) {
		return
	}
	limits := k.charge[0].limits
	for i := range limits {
		l := &limits[i]
		if n := left[l.Unit]; n >= 0 && n <= l.Capacity+l.LeakRate*time.Since(k.admitted).Seconds() {
			k.report(Report{Kind: Left, Used: left, Wait: reset, Reason: ReasonExhausted})
			return
		}
	}
}

func (o *observed) Remaining(left Cost, reset time.Duration) {
	if o.once(0, 0, func(p *Permit) { p.Remaining(left, reset) }) && left.none() {
		o.tell(Event{Kind: EventHeld, Hold: reset, Reason: ReasonExhausted})
	}
}
