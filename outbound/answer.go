package outbound

import (
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/core"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Answer is what the API replied to a call. The zero Answer stands for no reply.
type Answer struct {
	// Kind is the kind of reply. If it is empty, no reply came, or it came from a cache, or the
	// server is down. That changes no pace: the call counts as neither a success nor a refusal.
	Kind string
	// Wait is how long the API asks to wait, with AnswerRefused and AnswerHold, the time until the
	// reset, with AnswerRemaining, and how late the call was sent, with AnswerSent.
	Wait time.Duration
	// MaxWait bounds the pause that consecutive refusals double, with AnswerRefused. If it is zero,
	// negative or above an hour, it is an hour. It does not bound Wait.
	MaxWait time.Duration
	// Reason is why the API asks for a pause, in one of these words. The [ThrottledError] of calls
	// that have to wait carries it. Another word counts as unknown.
	//
	//	""             it is unknown, or an operator has asked for the pause
	//	"rate"         too many calls in a short time
	//	"quota"        the budget of a day or longer is used up
	//	"concurrency"  too many calls in flight
	//	"exhausted"    nothing remained until the reset of the quota: each AnswerRemaining
	Reason string
	// Remaining is the rest of the API's quota, with AnswerRemaining. A negative number stands for a
	// unit that the API did not mention.
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
	// AnswerRemaining is what remains of a quota until its reset, in Wait. If the calls that have
	// left since this one will use that up, all callers of the bucket wait until the reset. It never
	// speeds calls up.
	//
	// A reset in 2 s or less holds no call. Most calls use a quota up just before its reset anyway.
	// To wait for whole seconds would leave up to two thirds of a short window unused.
	//
	// It is for quotas that are reset at one time. One that leaks has capacity long before its reset.
	// Most such answers cost little: the bucket handles only those whose rest the later calls could
	// have used up. Behind a Window other processes may have used all of it. So a shared bucket
	// without another limit of that unit sends each such answer to its store. A short limit, such as
	// PerSecond(10), saves those requests.
	AnswerRemaining = "remaining"
	// AnswerQuota is a quota of the API, in Budget, for [Permit.Listen]. It changes nothing.
	AnswerQuota = "quota"
	// AnswerSent says that the call was sent only now, Wait after it was admitted, because a
	// connection had to be opened. The call then counts from now on, and a Settle returns nothing.
	// Otherwise it would reach the API together with the calls of the next window, which find a
	// connection. A bucket ignores a Wait of 10 ms or less. After a burst of late calls it ignores
	// later ones for 50 times the Wait, so that bursts cost at most 2 % of the quota.
	AnswerSent = "sent"
)

// reasons are the words of [Answer.Reason], by the number that a store keeps. A new word comes
// last, or the holds that are stored would change their reasons.
var reasons = [...]string{"", "rate", "quota", "concurrency", "exhausted"}

func whyOf(reason string) uint8 { return uint8(max(0, slices.Index(reasons[:], reason))) }

func reasonOf(why uint8) string {
	if int(why) >= len(reasons) {
		return ""
	}
	return reasons[why]
}

// fails reports whether a call with this answer has not succeeded.
func (a *Answer) fails() bool { return a.Kind == "" || a.Kind == AnswerRefused }

// told returns the answer as a bucket takes it.
func (a *Answer) told() core.Answer {
	t := core.Answer{Fails: a.fails(), Why: whyOf(a.Reason), Wait: a.Wait, MaxWait: a.MaxWait}
	switch a.Kind {
	case AnswerRefused:
		t.Kind, t.Crowded = store.Refused, true
	case AnswerHold:
		t.Kind, t.Crowded = store.Held, a.Reason == "concurrency"
	case AnswerRemaining:
		t.Kind, t.Why, t.Remaining = store.Remaining, whyOf("exhausted"), a.Remaining
	case AnswerSent:
		t.Sent = true
	}
	return t
}
