package outbound

import "time"

// Event is something that has happened to a call, as [Observe] reports it, or to a bucket, as
// [Bucket.Observe] does, for metrics and logs. A field that its kind does not mention is zero. It
// carries no key and no credential, except that Err's text has the bucket's own key.
type Event struct {
	Kind string
	// Name is the name that was given to Observe. A bucket's event has none.
	Name string
	// Cost is what the call was to take.
	Cost Cost
	// Wait is how long Acquire took: a place in a queue, or a trip to a store. It is 0 if
	// a bucket in this process decides by its one leaky limit, unheld and unbooked. It is
	// in the first three kinds. The queue's Explain says before a wait how long it will be.
	Wait time.Duration
	// Used is what the call really cost, with EventSettled.
	Used Cost
	// Hold is how long the API has asked to wait, with a call's EventHeld. If it is zero, the API
	// did not say. With a bucket's EventHeld and EventExtended it is how long the hold is to last
	// from now on, and with EventReleased how long it has lasted.
	Hold time.Duration
	// Rejected is set with a call's EventHeld if the API has refused the call, and not
	// if it has taken it and asked to wait before the next.
	Rejected bool
	// Reason is why, with EventHeld and EventExtended, as [Answer.Reason] has it.
	Reason string
	// Budget is what the API has told of one of its quotas, with EventQuota, and nil otherwise.
	Budget *Budget
	// Limit is that of the [*ThrottledError], with EventRefused.
	Limit string
	// Took is the time from the call's admission to its end, with EventEnded.
	Took time.Duration
	// Succeeded is set with EventEnded if the call was neither refused by the
	// API nor settled to nothing.
	Succeeded bool
	// Speed is that of the bucket's clock, with EventSlowed, as in [State].
	Speed float64
	// Calls is how many calls were forgotten, with EventForgotten, or how many places were lost,
	// with EventLate.
	Calls int
	// Late is how late the latest of them was, with EventLate.
	Late time.Duration
	// Before and Limits are the limits that were in force and those that are now, with EventLimits,
	// each as its String: "10 per 1s; 5 in flight".
	Before, Limits string
	// Err is why the call was not admitted: with EventRefused it has a
	// [*ThrottledError], with the limit and the time to come back. With
	// EventSettled and EventHeld it says why the number reported has no effect.
	Err error
}

// Budget is what an API tells of one of its quotas, such as in RateLimit headers. It is the
// API's word, for whoever looks, and steers nothing.
type Budget struct {
	// Policy is what the API calls the quota; "": it has no name.
	Policy string
	// Unit is what the quota counts, in the API's words; "": most likely requests.
	Unit string
	// Limit is the whole of the quota, and Remaining what is left of it. Below 0 the API has
	// not told.
	Limit, Remaining float64
	// Reset is how long until Limit is there again. Below 0 the API has not told.
	Reset time.Duration
	// Window is the time for which Limit is; 0: the API has not told.
	Window time.Duration
	// Number is which number of a [Cost] counts the same; below 0: none does.
	Number int
}

// The kinds of a call's events. Each call that asks for room has exactly one of the
// first three, and each that is admitted and ended one EventEnded.
const (
	// EventAdmitted is a call that may go.
	EventAdmitted = "admitted"
	// EventRefused is a call without room.
	EventRefused = "refused"
	// EventFailed is a call that was not admitted for another reason: its ctx
	// had ended, its cost can never go, or a store failed.
	EventFailed = "failed"
	// EventSettled is a call whose real cost is known: the first Settle. One
	// with a cost that is NaN, infinite or negative has no effect, and Err is
	// [ErrInvalid].
	EventSettled = "settled"
	// EventHeld is an API that asks to wait. One with a duration that has no effect has Err
	// [ErrInvalid]. [Bucket.Observe] reports holds as they are in force, of whatever cause, and
	// their end. It alone reports a hold because of an [AnswerRemaining].
	EventHeld = "held"
	// EventEnded is the end of a call.
	EventEnded = "ended"
	// EventQuota is an API that tells what is left of one of its quotas, be it much or
	// little: an [AnswerQuota], as package transport reports it of each response.
	EventQuota = "quota"
)

// The kinds of a bucket's events, which [Bucket.Observe] reports. A call, an operator, or another
// process that shares the bucket has caused them. A hold begins with an EventHeld here, too: the
// API has asked for a pause, or refused calls, or reported that nothing remains, or [Bucket.Hold]
// was called.
const (
	// EventExtended is a hold that is to last longer than was reported before.
	EventExtended = "extended"
	// EventReleased is the end of a hold whose time has passed.
	EventReleased = "released"
	// EventResumed is a [Bucket.Resume]. It ends a hold, without an EventReleased, and a slow-down.
	EventResumed = "resumed"
	// EventSlowed is a clock that was slowed down, because the API has refused calls.
	EventSlowed = "slowed"
	// EventLimits is a change of the limits.
	EventLimits = "limits"
	// EventForgotten is calls in flight whose permits the program has dropped without Done, as when
	// it does not close the body of a response. The garbage collector has freed their places long
	// after they had ended.
	EventForgotten = "forgotten"
	// EventLate is places of calls in a queue that were lost. They had passed by more than the
	// queue's tolerance when this process came to use them: its timers are late, as on a busy host,
	// or it was paused, or a store's reply was late. Each costs throughput, up to a unit's time.
	EventLate = "late"
)
