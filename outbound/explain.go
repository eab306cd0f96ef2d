package outbound

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/clock"
	"github.com/dripfeed/dripfeed/outbound/internal/core"
	"github.com/dripfeed/dripfeed/outbound/internal/forecast"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/slots"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Explanation says when a call could leave, and why not before: see [Bucket.Explain].
type Explanation struct {
	Key  string // of the bucket
	Cost Cost   // of the call
	// Wait is how long until the call could leave, if no other call came in between. If it is zero,
	// the call could leave now. It is negative if the time is unknown, as for a call in flight, or if
	// the call can never leave.
	Wait time.Duration
	// AtLeast is true if Wait is a lower bound. If it is false, Wait is exact to 5 %. Both hold until
	// the API refuses a call or another call comes before. After a refusal the call may leave sooner,
	// too: calls ahead miss their deadlines in the hold, and a slowed bucket catches up in it.
	AtLeast bool
	// Calls is how many calls were explained, if more than one: Wait is that of the last.
	Calls int
	// Because is what the call would wait for longest: a "limit", the end of a "hold", "booked" or
	// waiting calls before it, or the end of a call "in flight". It is "behind" if calls wait in the
	// queue in front, and "never" if waiting cannot help. If it is empty, the call could leave now.
	Because string
	// Limit is the limit that alone makes the call wait longest, and the first of equal ones: its
	// [State.Label]. It leaves out the hold, and what is booked because of another limit. If it is
	// empty, no limit makes the call wait.
	Limit string
	// States are the limits, in their order, with their [State.Wait] for this call.
	States []State
	// Refusals is how many calls the API has refused in a row.
	Refusals int
	// Corrupt is true if the bucket's stored data was corrupt. Each limit then counted as full, and
	// [Bucket.Resume] takes out what no call has taken.
	Corrupt bool
	// Share is true while the store is unavailable and package fallback decides by a part of each
	// limit. The States then count the rest of each limit as used.
	Share bool
	// Booked is how long until the last booked call leaves. If it is zero, no call is booked.
	Booked time.Duration
	// Ahead is how many calls wait in the queue that was asked. A bucket reports none.
	Ahead int
	// InFront is how many calls wait in the queues that the asked one is behind.
	InFront int
	// Unanswered is how many admitted calls of the asked queue got no answer in the last minute: their
	// deadline came UnansweredAfter they left, on average.
	Unanswered      int
	UnansweredAfter time.Duration
	// AsOf is when this was true, by this process's clock.
	AsOf time.Time
	// Err is why the call can never leave: a [*CostError].
	Err error
}

// Explain returns when a call of this cost could leave if no other call came before, and why not
// before. It changes nothing. It is one operation, and one request if the bucket is shared. It
// does not count calls that wait in a queue: ask the queue. A cost above a capacity is in the
// Explanation's Err. An invalid cost is a [*CostError].
func (b *Bucket) Explain(ctx context.Context, c Cost) (Explanation, error) {
	e, _, err := b.ExplainBeside(ctx, c, 0, Cost{})
	return e, err
}

// ExplainBeside is Explain for a call that keeps a fraction of each limit free, as
// [BookRequest].Headroom says, behind calls that wait and cost so much in all. It returns the clock
// of the reply, too, for packages that wait.
func (b *Bucket) ExplainBeside(ctx context.Context, c Cost, headroom float64, waiting Cost) (e Explanation, k Clock, err error) {
	if err := b.ready(ctx); err != nil {
		return e, k, err
	}
	if !c.valid() {
		return e, k, &CostError{Key: b.core.Name, Cost: c, Err: ErrInvalid}
	}
	var r core.Reply
	sent := time.Now()
	if err := b.core.Look(ctx, "explain", &core.Step{Step: key.Step{Op: store.Op{Slots: true}}}, &r); err != nil {
		return e, k, b.failure(err)
	}
	k = b.clock(&r, sent, new(Clock))
	k.said.Headroom = headroom
	s := &k.said.State
	e = Explanation{Key: b.core.Name, Cost: c, Refusals: max(0, s.Fails+1), Corrupt: s.Corrupt, Share: len(r.Share) > 0, AsOf: k.said.At}
	held := max(0, s.Rem)
	if s.Last > time.Microsecond { // in a hold the time of what has left before it
		e.Booked = s.Real(s.Last)
	}
	longest, needs := b.explainLimits(&e, &r, &k.said, &waiting), k.said.Needs(c.numbers())
	w, _, _ := s.Wait(k.said.Limits.Law, &needs)
	e.Wait = s.Real(w)
	if c.charged() == (Cost{}) && r.Flight == nil {
		e.Wait = held // it has no reservation behind other calls
	}
	switch bad := check(k.said.Whole, b.core.Name, &c, headroom); {
	case bad != nil:
		e.Wait, e.Because, e.Limit, e.Err = -1, "never", "", bad
	case k.said.Lacks(c.numbers()): // a share, and calls fail with the store's error
		e.Wait, e.Because = -1, "limit"
		e.Limit = e.States[slices.IndexFunc(e.States, func(l State) bool { return l.Wait < 0 && !l.Limit.form.InFlight })].Label()
	case r.Flight != nil && r.Used+slots.KeptFree(r.Flight.Most, headroom) >= r.Flight.Most:
		e.Wait, e.Because, e.Limit = -1, "in flight", spec.OfSlots(r.Flight).Label()
	case e.Wait <= 0:
	case held >= e.Wait-held:
		e.Because = "hold"
	case longest > e.Booked-held:
		e.Because = "limit"
	default:
		e.Because = "booked"
	}
	return e, k, nil
}

// explainLimits adds the state of each limit, and names the one that makes the call wait longest.
// It returns the longest wait that one of them alone makes.
func (b *Bucket) explainLimits(e *Explanation, r *core.Reply, k *clock.Clock, waiting *Cost) (longest time.Duration) {
	s, units, needs := &k.State, r.Force.Units(e.Cost.numbers()), k.Needs(e.Cost.numbers())
	at, most := 0, time.Duration(0)
	defer func(rem time.Duration) { s.Rem = rem }(s.Rem)
	s.Rem = 0
	e.States = statesOf(r)
	for i := range e.States {
		l := &e.States[i]
		if l.Limit.form.InFlight {
			l.InProgress, l.Oldest = b.core.Slots().Crowd()
			l.Processes, l.Largest = b.core.Slots().Others()
			l.Headroom = float64(slots.KeptFree(int(l.Limit.Capacity), k.Headroom))
			if float64(r.Used)+l.Headroom >= l.Limit.Capacity {
				l.Wait = -1
			}
			continue
		}
		law, n := &k.Limits.Law[at], needs[at]
		l.Pace, l.UsedUpIn = b.foresee(r, at, waiting)
		l.Headroom = n - units[at]
		l.Wait = s.Alone(k.Limits.Law, at, n)
		longest = max(longest, l.Wait)
		own := l.Wait
		if e.Booked > 0 && !law.Parted() && s.Level[at] > law.Capacity { // a call that is booked because of another limit fills this one until it leaves
			own = max(own-e.Booked, s.Real(law.Above(law.Capacity+n, law.Capacity)))
		}
		if own > most {
			most, e.Limit = own, l.Label()
		}
		at++
	}
	return longest
}

// foresee returns State.Pace and State.UsedUpIn of the limit i, behind calls that wait.
func (b *Bucket) foresee(r *core.Reply, i int, waiting *Cost) (pace float64, in time.Duration) {
	observers := b.core.Observed()
	if observers == nil || len(r.Share) > 0 || r.State.Corrupt {
		return 0, 0
	}
	law, rate := r.Force.Law, math.Inf(1) // at which they leave by the other limits
	units := waiting[law[i].Unit]
	for j := range law {
		if n := waiting[law[j].Unit]; j != i && n > 0 && units > 0 && law[j].Rate > 0 {
			rate = min(rate, law[j].Rate*r.State.Speed*units/n)
		}
	}
	pace, in = observers.Quotas().Foresee(law, &r.State, i, units, rate)
	if in == forecast.Never {
		in = 0
	}
	return pace, in
}

// String explains in words, on a line each for the answer, the hold, the speed and the limits:
//
//	"github": would wait 480ms for limit "per hour"
//	  limit "10 per 1s": 1 each 101ms, capacity for 1 now
//	  limit "per hour": level 49.6667 of 50, capacity for 1 in 480ms
func (e Explanation) String() string {
	var s strings.Builder
	s.WriteString(spec.Quote(e.Key) + ": " + e.answer())
	clock := State{Speed: 1}
	if len(e.States) > 0 {
		clock = e.States[0] // the hold and the speed are the bucket's
	}
	if clock.HeldFor > 0 {
		s.WriteString("\n  held for " + span(clock.HeldFor))
		if clock.Reason != "" {
			s.WriteString(" (" + clock.Reason + ")")
		}
	}
	switch {
	case e.Refusals == 1:
		s.WriteString("\n  the API has refused the latest call")
	case e.Refusals > 1:
		fmt.Fprintf(&s, "\n  the API has refused %d calls in a row", e.Refusals)
	}
	if e.Corrupt {
		s.WriteString("\n  its stored data was corrupt, so each limit counted as full: Resume ends this")
	}
	if e.Share {
		s.WriteString("\n  the store is unavailable: this process has its share of each limit")
	}
	if clock.Speed < 1 {
		fmt.Fprintf(&s, "\n  slowed to %s %% after refusals", spec.Number(math.Round(1000*clock.Speed)/10))
	}
	if e.Ahead > 0 && e.Because != "booked" {
		fmt.Fprintf(&s, "\n  %d ahead in the queue", e.Ahead)
	}
	if e.Unanswered > 0 {
		s.WriteString("\n  " + e.unanswered())
	}
	if e.Booked > 0 {
		s.WriteString("\n  calls are booked for the next " + span(e.Booked))
	}
	for i := range e.States {
		s.WriteString("\n  " + e.States[i].explain(&e.Cost))
	}
	return s.String()
}

func (e *Explanation) unanswered() string {
	n := fmt.Sprintf("%d calls got no answer in the last minute: their", e.Unanswered)
	if e.Unanswered == 1 {
		n = "1 call got no answer in the last minute: its"
	}
	return n + " deadline came " + span(e.UnansweredAfter) + " after the call had left"
}

// answer is the first line without the key.
func (e *Explanation) answer() string {
	in := "would wait"
	if e.Calls > 1 {
		in = fmt.Sprintf("the last of %d calls would wait", e.Calls)
	}
	if e.AtLeast && e.Wait > 0 {
		in += " at least"
	}
	if e.Wait > 0 {
		in += " " + span(e.Wait)
	}
	switch e.Because {
	case "limit":
		if e.Wait < 0 {
			return "is refused while the store is unavailable, for limit " + spec.Quote(e.Limit)
		}
		return in + " for limit " + spec.Quote(e.Limit)
	case "hold":
		return in + " for the hold to end"
	case "booked":
		if e.Ahead > 0 {
			return in + fmt.Sprintf(" for %d calls ahead in the queue", e.Ahead)
		}
		return in + " for calls that are booked"
	case "behind":
		return in + fmt.Sprintf(" for %d calls in the queue in front", e.InFront)
	case "in flight":
		if e.Wait > 0 { // also for calls ahead
			in += ", and"
		}
		return in + " until a call in progress ends, for limit " + spec.Quote(e.Limit)
	case "never":
		if e.Err == nil { // no bucket has explained it
			return "can never be admitted"
		}
		return "can never be admitted: " + e.Err.Error()
	}
	return "would leave now"
}

// explain says on one line what the limit does to a call of this cost.
func (l *State) explain(c *Cost) string {
	s, units := "limit "+spec.Quote(l.Label())+": ", c[l.Limit.Unit]
	if l.Limit.form.InFlight {
		if s += spec.Number(l.Level) + " of " + spec.Number(l.Limit.Capacity) + " calls in progress" + l.kept(); l.Processes > 0 {
			s += " (" + l.Where() + ")"
		}
		if l.Oldest >= time.Second {
			s += ", the oldest for " + span(l.Oldest)
		}
		return s
	}
	if l.Limit.Capacity == 1 && l.Limit.form.Kind == store.Leaky {
		s += "1 each " + span(time.Duration(float64(time.Second)/(l.Limit.LeakRate*l.Speed)))
	} else if l.Level > l.Limit.Capacity*(1+1e-9) { // a leaky level above it depends on when the last booked call leaves, not on how many are booked
		s += "more than " + spec.Number(l.Limit.Capacity) + " of " + spec.Number(l.Limit.Capacity)
	} else {
		s += "level " + spec.Number(l.Level) + " of " + spec.Number(l.Limit.Capacity)
	}
	s += l.kept()
	switch {
	case units == 0:
		return s
	case l.Wait < 0:
		if law := l.Limit.spec().Law(); law.Takes(units) <= law.Capacity { // it is the share that lacks it
			return s + ", no capacity for " + spec.Number(units) + " while the store is unavailable"
		}
		return s + ", never capacity for " + spec.Number(units)
	case l.Wait == 0:
		return s + ", capacity for " + spec.Number(units) + " now"
	}
	return s + ", capacity for " + spec.Number(units) + " in " + span(l.Wait)
}

// kept says how much a queue keeps free.
func (l *State) kept() string {
	if l.Headroom <= 0 {
		return ""
	}
	return ", " + spec.Number(l.Headroom) + " kept free for others"
}

// span is a duration without needless digits.
func span(d time.Duration) string {
	unit := time.Nanosecond
	switch {
	case d >= time.Minute:
		unit = time.Second
	case d >= time.Millisecond:
		unit = time.Millisecond
	}
	return spec.Short((d + unit/2) / unit * unit)
}

// LogValue returns the most important fields, and as text what String says, as a group for package
// log/slog. It has a wait only if that is known.
func (e Explanation) LogValue() slog.Value {
	wait := slog.Duration("wait", e.Wait)
	if e.Wait < 0 {
		wait = slog.Attr{}
	}
	return slog.GroupValue(slog.String("key", e.Key), wait, slog.String("because", e.Because),
		slog.String("limit", e.Limit), slog.String("text", e.String()))
}

// MarshalJSON writes the fields, durations in nanoseconds, the text of Err, and as Text what String
// says.
func (e Explanation) MarshalJSON() ([]byte, error) {
	type fields Explanation // without this method
	out := struct {
		fields
		Err  string `json:",omitempty"`
		Text string
	}{fields: fields(e), Text: e.String()}
	if e.Err != nil {
		out.Err = e.Err.Error()
	}
	return json.Marshal(out)
}
