package outbound

import (
	"fmt"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/spec"
)

// Event is something that has happened to a call, as [Observe] reports it, or to a bucket, as
// [Bucket.Observe] does, for metrics and logs. A field that its kind does not mention is zero. Its
// only key is that of the bucket, in Err's text.
type Event struct {
	Kind string
	// Name is the name that was given to Observe. A bucket's event has none.
	Name string
	// Cost is what the call was charged or refused for.
	Cost Cost
	// Wait is how long Acquire took, with the first three kinds: the wait in a queue, or a request to
	// a store. It is 0 if a bucket in this process decides by its one leaky limit, unheld and
	// unbooked. The queue's Explain estimates a wait before it begins.
	Wait time.Duration
	// Used is what the call really cost, with EventSettled.
	Used Cost
	// Hold is how long the API has asked to wait, with a call's EventHeld. If it is zero, the API did
	// not say. With a bucket's EventHeld and EventExtended it is how long the hold lasts from now on,
	// and with EventReleased how long it has lasted.
	Hold time.Duration
	// Rejected is true with a call's EventHeld if the API has refused the call, and false if it has
	// accepted the call and asked to wait before the next.
	Rejected bool
	// Reason is why, with EventHeld and EventExtended, as [Answer.Reason] has it.
	Reason string
	// Budget is one of the API's quotas as reported, with EventQuota, and nil otherwise.
	Budget *Budget
	// Limit is that of the [*ThrottledError], with EventRefused, and the quota's [State.Label], with
	// EventRunsOut.
	Limit string
	// Took is the time from the call's admission to its end, with EventEnded.
	Took time.Duration
	// Succeeded is true with EventEnded unless the API has refused the call, or it was settled to
	// nothing.
	Succeeded bool
	// Speed is that of the bucket's clock, with EventSlowed, as in [State].
	Speed float64
	// UsedUpIn is how long until the quota named by Limit is used up, with EventRunsOut, as in [State].
	UsedUpIn time.Duration
	// Calls is how many calls were forgotten, with EventForgotten, or how many reservations were
	// lost, with EventLate.
	Calls int
	// Late is how late the latest of them was, with EventLate.
	Late time.Duration
	// Before and Limits are the limits that were in force and those that are now, with EventLimits,
	// each as its String: "10 per 1s; 5 in flight".
	Before, Limits string
	// Err is why the call was not admitted. With EventRefused it is or wraps a [*ThrottledError],
	// with the limit and the time to retry. With EventSettled and EventHeld it is why the reported
	// number has no effect.
	Err error
}

// String returns the kind, and each field that it has, for logs: "held: hold 1m0s, reason rate".
func (e Event) String() string {
	s, between := e.Kind, ": "
	add := func(set bool, name string, value any) {
		if set {
			s += between + name + fmt.Sprint(value)
			between = ", "
		}
	}
	add(e.Name != "", "", spec.Quote(e.Name))
	add(e.Cost != (Cost{}), "cost ", [units]float64(e.Cost))
	add(e.Wait != 0, "wait ", span(e.Wait))
	add(e.Used != (Cost{}), "used ", [units]float64(e.Used))
	add(e.Hold != 0, "hold ", span(e.Hold))
	add(e.Rejected, "rejected", "")
	add(e.Reason != "", "reason ", e.Reason)
	if e.Budget != nil {
		add(true, "budget ", fmt.Sprintf("%s of %s %s", spec.Number(e.Budget.Remaining), spec.Number(e.Budget.Limit), e.Budget.Policy))
	}
	add(e.Limit != "", "limit ", spec.Quote(e.Limit))
	add(e.Took != 0, "took ", span(e.Took))
	add(e.Succeeded, "succeeded", "")
	add(e.Speed != 0, "speed ", math.Round(1000*e.Speed)/1000)
	add(e.UsedUpIn != 0, "used up in ", span(e.UsedUpIn))
	add(e.Calls != 0, "calls ", e.Calls)
	add(e.Late != 0, "late ", span(e.Late))
	add(e.Limits != "", "limits ", e.Before+" -> "+e.Limits)
	add(e.Err != nil, "", e.Err)
	return s
}

// Budget is one quota of an API as it reports it, such as in RateLimit headers. It is for
// observers, and adjusts nothing.
type Budget struct {
	// Policy is the API's name of the quota, or empty.
	Policy string
	// Unit is what the quota counts, in the API's words. If it is empty, these are probably requests.
	Unit string
	// Limit is the whole quota, and Remaining what is left of it. Negative numbers are unknown.
	Limit, Remaining float64
	// Reset is how long until all of Limit is free again. It is negative if unknown.
	Reset time.Duration
	// Window is the time that Limit is for, or 0 if unknown.
	Window time.Duration
	// Number is the index of the number of a [Cost] that counts the same, or negative for none.
	Number int
}

// The kinds of a call's events. Each call of Acquire has exactly one of the first three, and each
// admitted and ended one has one EventEnded.
const (
	// EventAdmitted is an admitted call.
	EventAdmitted = "admitted"
	// EventRefused is a call over the limit.
	EventRefused = "refused"
	// EventFailed is a call that failed for another reason: its ctx had ended, its cost is above a
	// capacity, or a store failed.
	EventFailed = "failed"
	// EventSettled is a call whose real cost is known: the first Settle. One
	// with a cost that is NaN, infinite or negative has no effect, and Err is
	// [ErrInvalid].
	EventSettled = "settled"
	// EventHeld is an API that asks to wait. If the duration is invalid, Err is [ErrInvalid].
	// [Bucket.Observe] reports the holds in force, of any cause, and their ends. Only there a hold by
	// an [AnswerRemaining] is reported.
	EventHeld = "held"
	// EventEnded is the end of a call.
	EventEnded = "ended"
	// EventQuota is an API that reports the rest of one of its quotas: an [AnswerQuota], which
	// package transport makes of each response.
	EventQuota = "quota"
)

// The kinds of a bucket's events, which [Bucket.Observe] reports. A call, an operator, or another
// process that shares the bucket has caused them. A hold begins with an EventHeld here, too: the
// API has asked for a pause, or refused calls, or reported that nothing remains, or [Bucket.Hold]
// was called.
const (
	// EventExtended is a hold that lasts longer than was reported before.
	EventExtended = "extended"
	// EventReleased is the end of a hold whose time has passed.
	EventReleased = "released"
	// EventResumed is a [Bucket.Resume]. It ends a hold, without an EventReleased, and a slow-down.
	EventResumed = "resumed"
	// EventSlowed is a clock that was slowed down, because the API has refused calls.
	EventSlowed = "slowed"
	// EventLimits is a change of the limits.
	EventLimits = "limits"
	// EventForgotten is calls in flight whose permits the program has dropped without Done, for
	// instance because it did not close the body of a response. The garbage collector has ended them
	// long after their real end.
	EventForgotten = "forgotten"
	// EventRunsOut is a quota that is likely to be used up before its period ends: 80 % of it is used,
	// and [State.UsedUpIn] foresees the rest. Each limit has at most one of these events in an hour.
	// Another one comes only after the quota was likely to last.
	EventRunsOut = "runs out"
	// EventLate is lost reservations of calls in a queue. This process came to use them later than
	// the queue's tolerance: its timers are late, as on a busy host, it was paused, or a store's
	// reply was late. Each costs throughput, up to a unit's time.
	EventLate = "late"
)
