package outbound

import (
	"math"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Answer is what the API said to a call. The zero Answer says that it said nothing.
type Answer struct {
	// Kind is what the API said. If it is empty, no answer came, or the answer came out of a cache, or
	// the server is down: that changes no pace, and the call counts neither as a success nor as a
	// refusal.
	Kind string
	// Wait is how long the API asks to wait, with AnswerRefused and AnswerHold, and the
	// time until the reset, with AnswerRemaining.
	Wait time.Duration
	// MaxWait is the longest that refusals in a row double a pause to, with
	// AnswerRefused. 0 or less, or more than an hour: an hour. It does not bound Wait:
	// how long a pause the API may ask for, its caller decides.
	MaxWait time.Duration
	// Reason is why the API asks for a pause, in one of these words. The [ThrottledError] of calls
	// that have to wait carries it. Another word counts as unknown.
	//
	//	""             it is unknown, or an operator has asked for the pause
	//	"rate"         too many calls in a short time
	//	"quota"        the budget of a day or longer is used up
	//	"concurrency"  too many calls in flight
	//	"exhausted"    nothing remained until the reset that the API had told: each AnswerRemaining
	Reason string
	// Remaining is what the API says remains of its quota, with AnswerRemaining. A number below 0
	// stands for a unit that the API did not mention.
	Remaining Cost
	// Budget is one of the API's quotas, with AnswerQuota.
	Budget Budget
}

// The kinds of answers.
const (
	// AnswerRefused is a refusal, as with 429: see [Permit.Refused].
	AnswerRefused = "refused"
	// AnswerHold is a pause that the API asks for before the next call: see [Permit.Hold].
	AnswerHold = "hold"
	// AnswerRemaining is what remains of a quota until its reset, in Wait. If the calls that
	// have left since this one will use that up, all callers of the bucket wait until the reset. It
	// never makes anybody faster.
	//
	// A reset in 2 s or less holds no call. Most calls use a quota up just before its reset anyway.
	// To wait for whole seconds would leave up to two thirds of a short window unused.
	//
	// It is for quotas that come back all at once. One that leaks has room again long before its
	// reset. Most calls cost little: the bucket hears only of what is so little that the calls
	// since could have used it up. Through a Window all of it may have gone since, whoever called:
	// a shared bucket with no other limit of that unit hears of each such answer, in a trip of its
	// own. A short limit for company, as PerSecond(10), spares those trips.
	AnswerRemaining = "remaining"
	// AnswerQuota is a quota of the API, in Budget, for [Permit.Listen]. It changes nothing.
	AnswerQuota = "quota"
)

// reasons are the words of [Answer.Reason], by the number that a store keeps.
var reasons = [...]string{"", "rate", "quota", "concurrency", "exhausted"}

func whyOf(reason string) uint8 { return uint8(max(0, slices.Index(reasons[:], reason))) }

func reasonOf(why uint8) string {
	if int(why) >= len(reasons) {
		return ""
	}
	return reasons[why]
}

// soon is a reset that is not worth a hold. A program that keeps a short window's limit sees
// nothing remain at the window's very end. An API rounds the reset to whole seconds, so a hold
// would take up to two seconds of the next window.
const soon = 2 * time.Second

// fails reports whether a call with this answer has not succeeded.
func (a *Answer) fails() bool { return a.Kind == "" || a.Kind == AnswerRefused }

// concerns reports whether the bucket is to hear of the answer to a call that left so long ago. Of
// what is left of a quota it is to hear if the calls since could have used that up.
func (a *Answer) concerns(b *core, since time.Duration) bool {
	switch a.Kind {
	case AnswerRefused:
		return true
	case AnswerHold:
		return a.Wait > 0
	case AnswerRemaining:
	default:
		return false
	}
	if a.Wait <= soon || !a.Remaining.told() {
		return false
	}
	used := Cost{-1, -1, -1, -1} // at most; below 0: no limit counts that unit
	b.each(func(unit int, capacity, rate float64) {
		if n := capacity + rate*since.Seconds(); used[unit] < 0 || n < used[unit] {
			used[unit] = n
		}
	})
	for unit, n := range a.Remaining {
		if n >= 0 && n <= used[unit] {
			return true
		}
	}
	return false
}

// report returns what the bucket hears of an answer to the call of this charge.
func (a *Answer) report(c *store.Charge, by *limitSet) report {
	r := report{Report: store.Report{Kind: store.Held, Charge: c, Wait: max(0, a.Wait), Reason: whyOf(a.Reason)}, by: by}
	switch a.Kind {
	case AnswerRefused:
		r.Kind, r.MaxWait, r.Epoch = store.Refused, max(0, a.MaxWait), c.Epoch
	case AnswerRemaining:
		r.Kind, r.used, r.Reason = store.Remaining, a.Remaining, whyOf("exhausted")
	}
	return r
}

// told reports whether the API has told of any unit, and makes -1 of the numbers that tell nothing:
// below 0, NaN, infinite.
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
