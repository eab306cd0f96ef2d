package outboundtest

import (
	"errors"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// remains has the API tell how many units remained when a call left. Only once calls have
// taken so many since, nothing goes.
func (e *exam) remains() {
	key := e.key()
	b, other := e.share(key, slow(100)), e.share(key, slow(100))
	p := e.admit(b, outbound.Cost{1})
	for range 4 {
		e.admit(other, outbound.Cost{1})
	}
	p.Answered(outbound.Answer{Kind: outbound.AnswerRemaining, Remaining: outbound.Cost{-1, 0, 0, 0}, Wait: time.Hour}) // of units that the bucket does not count
	p.Answered(outbound.Answer{Kind: outbound.AnswerRemaining, Remaining: outbound.Cost{5}, Wait: time.Hour})
	q := e.admit(other, outbound.Cost{1})
	p.Answered(outbound.Answer{Kind: outbound.AnswerRemaining, Remaining: outbound.Cost{5, math.NaN(), math.Inf(1), math.Inf(-1)}, Wait: time.Hour})
	full := e.refuse(b, outbound.Cost{1})
	if !full.Held || full.Reason != outbound.ReasonExhausted {
		e.failf("of 5 that remained 5 had been used since: %v", full)
	}
	if s, err := b.State(bg); err != nil || s.HeldFor < 59*time.Minute || s.HeldFor > time.Hour {
		e.failf("held for %v, %v; want an hour", s.HeldFor, err)
	}
	q.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: 2 * time.Hour, Reason: outbound.ReasonQuota})
	if full = e.refuse(other, outbound.Cost{1}); full.Reason != outbound.ReasonQuota {
		e.failf("held by quota: %v", full)
	}
	if err := b.Resume(bg); err != nil {
		e.Fatal(err)
	}
	if _, err := other.Acquire(bg, outbound.Cost{1}); err != nil && !errors.Is(err, outbound.ErrThrottled) {
		e.Fatal(err)
	}
}
