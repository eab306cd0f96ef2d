package profile

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// Reason is why the API has refused a call.
type Reason uint8

// The reasons. They differ in what helps.
const (
	// Unknown is a success, or a refusal without a reason, such as a plain 503 with a Retry-After.
	Unknown Reason = iota
	// Rate: too many calls, tokens or points in a time of less than a day. Going slower
	// helps.
	Rate
	// Quota: the budget of a day or longer is used up, or the account's credit. Going slower
	// does not help now; waiting may take days.
	Quota
	// Concurrency is too many calls in flight.
	Concurrency
	// Overload: the API has troubles of its own, for every caller.
	Overload
	// Lock: something narrower than the account's limits, such as one object that another call holds,
	// or an endpoint or a set of names with a limit of its own. Scope says which, if the API does. The
	// rest of the account is as free as before.
	Lock
)

// String returns the reason's name in lower case.
func (r Reason) String() string {
	if int(r) >= len(reasonNames) {
		return reasonNames[Unknown]
	}
	return reasonNames[r]
}

var reasonNames = [...]string{"unknown", "rate", "quota", "concurrency", "overload", "lock"}

// Kind is how a policy lets calls through.
type Kind uint8

// The kinds of policies.
const (
	// Window is a number of units until the reset, which frees all of them. Also where the API does
	// not say how it counts.
	Window Kind = iota
	// Bucket is a limit that frees units all the time. The reset is when all will be there; some are
	// there long before.
	Bucket
	// InFlight: so many calls in progress.
	InFlight
	// PerSecond: Limit is a rate, in units per second. The API counts nothing down.
	PerSecond
)

// None stands for an unknown Limit, Remaining or Reset.
const None = -1

// A Policy is one limit of the API, as far as the response reports it.
type Policy struct {
	// Name is the API's name of it, of a policy, a resource, a bucket or a unit, or empty. At most
	// 128 bytes, without control characters.
	Name string
	// Unit is what it counts, such as "requests", "tokens", "points" or "content-bytes". If it is
	// empty, the API does not say, and it is probably requests.
	Unit string
	// Limit and Remaining are in units, at least 0, or None. Remaining is at most Limit. Some APIs
	// send fractions.
	Limit, Remaining float64
	// Reset is how long it is until Limit is there again, at most 40 days, or None. It counts
	// from when the response's headers came.
	Reset time.Duration
	// Kind is how it lets calls through.
	Kind Kind
	// Absolute says that Reset comes from a point in time in whole seconds, so that it may be
	// up to a second too short.
	Absolute bool

	minusOne bool // Remaining was -1, which may stand for 0 or for unknown
	beta     bool // for information: it holds nothing
	quota    bool // a limit with its window, which may be the window of another policy

	// Window is the time that Limit is for, or 0 if unknown.
	Window time.Duration
	// Partition is the pk parameter of the field RateLimit: whose quota it is.
	Partition []byte

	used float64 // for a policy without Remaining
}

// NewPolicy returns a policy of which nothing is known but the name.
func NewPolicy(name string) Policy {
	return Policy{Name: name, Limit: None, Remaining: None, Reset: None, used: None}
}

// Wait returns how long it is until the reset. It adds a second where the reset came as a point in
// time: API and header round, and the API refuses a call that comes a second early. For a [Bucket]
// of requests it is how long until one of them is free, and a second at least.
// Wait is 0 if the reset is unknown or over.
func (p *Policy) Wait() time.Duration {
	d := max(0, p.Reset)
	if p.Absolute && p.Reset >= 0 {
		d += time.Second
	}
	if p.Kind == Bucket && p.Remaining >= 0 && p.Limit-p.Remaining > 1 && (p.Unit == "" || p.Unit == "requests") {
		d = min(d, max(time.Second, duration(1/(p.Limit-p.Remaining), d)))
	}
	return d
}

// leaks recognizes a leaky bucket of one unit a second: its reset has as many seconds as units
// are used.
func (p *Policy) leaks() bool {
	used := p.Limit - p.Remaining
	return p.Kind == Window && p.Remaining >= 0 && used >= 600 && math.Abs(p.Reset.Seconds()-used) <= 1
}

// exhausted reports whether nothing remains for further calls.
func (p *Policy) exhausted() bool {
	return p.Remaining == 0 && p.Kind != InFlight && p.Kind != PerSecond
}

// normalize brings the policy into the shape that its fields promise. It reports whether the
// policy says anything.
func (p *Policy) normalize() bool {
	switch {
	case p.minusOne && p.Limit >= 0:
		p.Remaining = 0
	case p.minusOne && p.Remaining < 0:
		return false // -1 of -1: the API does not know
	}
	if p.Remaining < 0 && p.Limit >= 0 && p.used >= 0 {
		p.Remaining = max(0, p.Limit-p.used)
	}
	if p.Limit < 0 && p.Remaining >= 0 && p.used >= 0 {
		p.Limit = p.Remaining + p.used
	}
	if p.Limit >= 0 && p.Kind != PerSecond {
		p.Remaining = min(p.Remaining, p.Limit)
	}
	return p.Limit >= 0 || p.Remaining >= 0 || p.Reset >= 0
}

const (
	inlined     = 4  // policies for which a Signal needs no allocation
	maxPolicies = 32 // of one response; further ones are dropped
)

// Signal is what a response says about the API's limits. The zero Signal is of a response without a
// report. It is a value; a copy has policies of its own, but shares those beyond the fourth.
type Signal struct {
	// Throttled says that the API has refused the call because of its limits or its load.
	Throttled bool
	// Cached says that the response came out of a cache. It is not about the API's present state, and
	// all else is zero.
	Cached bool
	// Free says that the call cost nothing, by the profile's Free: a transport returns what it was
	// charged.
	Free bool
	// Reason is why the API refused the call.
	Reason Reason
	// TooLarge says that the call asks for more than the API ever admits at a time, so that no wait
	// helps. The Reason is a Lock.
	TooLarge bool
	// Detail is the API's own word for the reason, such as "endpoint-concurrency", bounded as the
	// name of a [Policy] is, or empty.
	Detail string
	// Scope says whom the refusal concerns, in the API's words or the profile's, such as
	// "global", "user" or "secondary"; bounded as Detail is.
	Scope string
	// RetryAfter is how long the API asks to wait: in Retry-After or one of its relatives, in the
	// body, or in its documentation if the profile has a Penalty. It is between 0 and 2^31 s. On a
	// success it is a hint for polling, and has no effect.
	RetryAfter time.Duration
	// HasRetryAfter distinguishes a RetryAfter of 0 from none.
	HasRetryAfter bool
	// Absolute says that RetryAfter came as a point in time.
	Absolute bool
	// Wait is for how long no further call should leave, by the order in the package's documentation,
	// or 0 if the API did not say. It is at most 2^31 s, and its user may cap it lower. A function
	// Judge may set it for refusals without a RetryAfter and a reset.
	Wait time.Duration
	// Date is the API's clock at the response, from the header Date. It is zero if that is missing,
	// or if the Signal has nothing else.
	Date time.Time
	// Skew is by how much the API's clock is ahead of the local one, as far as Date shows,
	// which has whole seconds; 0 without Date.
	Skew time.Duration

	overdrawn bool // less than nothing remains of a policy. -1 may stand for no limit
	list[Policy]
}

// Policies returns the policies seen, at most 32, in an order that means nothing. No two are
// the same. The slice is the Signal's own; do not append to it.
func (s *Signal) Policies() []Policy { return s.all() }

// Add adds a policy, for a function Judge. It bounds Name and Unit as the fields say. Beyond
// 32 policies it adds nothing.
func (s *Signal) Add(p Policy) {
	if p.bound() {
		s.push(p)
	}
}

// bound brings what a function Judge has said into the bounds that the fields promise.
func (s *Signal) bound() {
	s.Detail, s.Scope = clean(s.Detail), clean(s.Scope)
	s.RetryAfter = max(0, min(s.RetryAfter, forever))
	if int(s.Reason) >= len(reasonNames) {
		s.Reason = Unknown
	}
	for i := s.n - 1; i >= 0; i-- {
		if p := &s.Policies()[i]; !p.bound() {
			s.drop(i)
		}
	}
}

func (p *Policy) bound() bool {
	p.Name, p.Unit = clean(p.Name), clean(p.Unit)
	p.Limit, p.Remaining, p.used = amount(p.Limit), amount(p.Remaining), amount(p.used)
	if p.Reset < 0 || p.Reset > maxReset {
		p.Reset, p.Absolute = None, false
	}
	p.Window = max(0, min(p.Window, forever))
	return p.normalize()
}

func amount(f float64) float64 {
	if f >= 0 && f <= 1e20 {
		return f
	}
	return None
}

// A list holds its first values without an allocation.
type list[T any] struct {
	few  [inlined]T
	n    int
	many []T // all of them, once they are more than few
}

func (l *list[T]) all() []T {
	if l.many != nil {
		return l.many
	}
	return l.few[:l.n:l.n]
}

// push adds a value and returns its address, or nil if there are maxPolicies.
func (l *list[T]) push(a T) *T {
	switch {
	case l.n >= maxPolicies:
		return nil
	case l.n < inlined && l.many == nil:
		l.few[l.n] = a
	case l.many == nil:
		l.many = append(make([]T, 0, 4*inlined), l.few[:]...)
		fallthrough
	default:
		l.many = append(l.many, a)
	}
	l.n++
	return &l.all()[l.n-1]
}

// drop removes the value with the given index.
func (l *list[T]) drop(i int) {
	if l.many != nil {
		l.many = slices.Delete(l.many, i, i+1)
	} else {
		copy(l.few[i:], l.few[i+1:l.n])
	}
	l.n--
}

// Binding returns the policy that binds most: one of which nothing remains, with the longest reset,
// or else the one of which the least part remains. It is nil if there is no policy.
func (s *Signal) Binding() *Policy {
	all := s.Policies()
	var best *Policy
	for i := range all {
		if p := &all[i]; best == nil || p.binds(best) {
			best = p
		}
	}
	return best
}

// binds reports whether p binds more than q. It is a total order, because Go's maps do not
// keep that of the headers.
func (p *Policy) binds(q *Policy) bool {
	a, b := p.exhausted(), q.exhausted()
	switch {
	case a != b:
		return a
	case a && p.Reset != q.Reset:
		return p.Reset > q.Reset
	}
	return cmp.Or(cmp.Compare(p.fraction(), q.fraction()), cmp.Compare(p.Remaining, q.Remaining),
		cmp.Compare(q.Reset, p.Reset), strings.Compare(p.Name, q.Name)) < 0
}

// fraction is the part of the limit that remains, 0 to 1. It is 2 if only the rest is known, and 3
// if that is unknown, too.
func (p *Policy) fraction() float64 {
	switch {
	case p.Remaining < 0 || p.Kind == PerSecond:
		return 3
	case p.Limit < 0:
		return 2
	case p.Limit == 0:
		return 0
	}
	return p.Remaining / p.Limit
}

// ofEndpoint makes a refusal a Lock if only policies of endpoints are exhausted.
func (s *Signal) ofEndpoint() {
	p := s.Binding()
	if s.Throttled && s.Reason == Rate && p != nil && p.exhausted() &&
		!slices.ContainsFunc(s.Policies(), func(q Policy) bool { return q.exhausted() && q.Unit != "endpoint" }) {
		s.Reason, s.Scope, s.Detail, s.Wait = Lock, "endpoint", p.Name, max(s.Wait, p.Wait())
	}
}

// computeWait computes how long to wait.
func (s *Signal) computeWait(penalty time.Duration) {
	all := s.Policies()
	longest, only, counted := time.Duration(0), time.Duration(0), 0
	busy := false // too many calls in flight
	for i := range all {
		p := &all[i]
		switch {
		case p.beta:
			continue
		case !p.exhausted():
		case s.Throttled && p.Reset < 0 && (p.Kind == Bucket || p.Window <= time.Minute):
			longest = max(longest, p.Window) // at most
		case s.Throttled, p.Kind == Window:
			longest = max(longest, p.Wait())
		}
		// This excludes a policy with a limit only, and one with a rest while another is spent or the
		// API has troubles of its own.
		if (p.Remaining >= 0 || p.Reset >= 0) && !((s.Reason == Quota || s.Reason == Unknown) && p.Remaining > 0) {
			counted++
			if only = p.Wait(); p.Remaining >= 1 && p.Reset > time.Minute {
				only = 0 // another limit has refused. But a short window may be counted late
			}
		}
		busy = busy || p.Kind == InFlight && p.Remaining == 0
	}
	if busy && longest == 0 && s.Throttled && s.Reason == Rate {
		s.Reason = Concurrency
	}
	own := max(0, min(s.Wait, forever))
	s.Wait = 0
	switch {
	case !s.Throttled:
		s.Wait = longest
	case s.TooLarge:
	case s.RetryAfter > 0:
		s.Wait = s.RetryAfter
		if s.Absolute {
			s.Wait = min(forever, s.Wait+time.Second)
		}
	case s.Reason == Lock, s.Reason == Overload:
		s.Wait = own // no reset is about these
	case max(longest, own) > 0:
		s.Wait = max(longest, own)
	case counted == 1 && s.Reason != Concurrency:
		s.Wait = only
	}
	if s.Throttled && s.Reason == Rate {
		if s.Wait == 0 && penalty > 0 {
			s.RetryAfter, s.HasRetryAfter = min(penalty, forever), true
			s.Wait = s.RetryAfter
		}
		if p := s.Binding(); p != nil && p.exhausted() && !p.beta && p.Window >= day {
			s.Reason = Quota
		}
	}
}
