package outbound

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Explanation says when a call could go, and why not before: see [Bucket.Explain].
type Explanation struct {
	Key  string // of the bucket
	Cost Cost   // of the call
	// Wait is how long until the call could go, if nobody came in between; 0: it could go now.
	// Below 0 nobody knows, as while as many calls as may be are in progress, or it never can.
	Wait time.Duration
	// Because is what the call would wait for, the longest part of it.
	Because Cause
	// Limit is the limit that alone makes the call wait longest; of equals the first. It leaves the hold out, and what
	// is booked for the sake of another limit. It is the limit's name, or what it says, such as "10 per 1s". Empty:
	// no limit makes the call wait.
	Limit string
	// HeldFor is how long a hold still lasts, and Reason why; 0: none does.
	HeldFor time.Duration
	Reason  Reason
	// Refusals is how many calls the API has refused in a row.
	Refusals int
	// Speed is that of the bucket's clock, as in [State].
	Speed float64
	// Booked is how long until the last call that is booked goes; 0: none is.
	Booked time.Duration
	// Ahead is how many calls wait in the queue that was asked. A bucket knows of none.
	Ahead int
	// Limits are the limits, in their order.
	Limits []LimitWait
	// AsOf is when this was true, by this process's clock.
	AsOf time.Time
	// Err is why the call can never go, with CauseNever: a [*CostError].
	Err error
}

// LimitWait is how long one limit would make a call wait.
type LimitWait struct {
	State
	Label string  // the limit's name, or what it says, as in the Explanation's Limit
	Units float64 // that the call takes of the limit
	// Wait is how long until the limit has room for them, if there were no other limit and no
	// hold. Below 0 nobody knows.
	Wait time.Duration
	// Apart is the time between two units of a limit that lets one go after the other, as [Per] and a Capacity
	// of 1 do, at the bucket's speed. Their Level tells nobody anything. 0: it is another limit.
	Apart time.Duration
}

// Cause is what a call would wait for.
type Cause uint8

// The causes.
const (
	CauseNone     Cause = iota // nothing: it could go now
	CauseLimit                 // a limit has no room
	CauseHold                  // a hold has to end
	CauseBooked                // others are booked, or wait, before it
	CauseInFlight              // as many calls as may be are in progress
	CauseNever                 // no wait helps
)

var causes = [...]string{"none", "limit", "hold", "booked", "in flight", "never"}

// String returns the cause in a word or two: "limit".
func (c Cause) String() string {
	if int(c) >= len(causes) {
		return "unknown"
	}
	return causes[c]
}

// MarshalText returns what String does.
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Explain says when a call of this cost would go if nobody came in between, and why not
// before. It changes nothing. It is one operation: a trip, if the bucket is shared. It does not
// know of calls that wait in a queue without a place yet: ask the queue. Of a window in a shared
// store it tells a lower bound for calls of more than a unit. A cost that can never go is no
// error: the Explanation says so. An invalid one is a [*CostError].
func (b *Bucket) Explain(ctx context.Context, c Cost) (Explanation, error) {
	if err := b.ready(ctx); err != nil {
		return Explanation{}, err
	}
	if !c.valid() {
		return Explanation{}, &CostError{Key: b.key, Cost: c, Err: ErrInvalidCost}
	}
	var r reply
	sent := time.Now()
	if err := b.peek(ctx, "explain", &step{logs: true}, &r); err != nil {
		return Explanation{}, err
	}
	k := b.clock(&r, sent)
	s := &k.state
	e := Explanation{Key: b.key, Cost: c, HeldFor: max(0, s.Rem), Refusals: max(0, s.Fails+1), Speed: s.Speed, AsOf: k.at}
	if e.HeldFor > 0 {
		e.Reason = Reason(s.Why)
	}
	if s.Last > time.Microsecond { // which in a hold is the place of what has gone before it
		e.Booked = s.Real(s.Last)
	}
	longest := e.explainLimits(&r, &k)
	e.Wait = k.wait(&c)
	if units := r.force.units(&c); s.Logs != nil {
		w, _ := s.Wait(r.force.law, &units)
		e.Wait = s.Real(w)
	}
	if c == (Cost{}) && r.inFlight == nil {
		e.Wait = e.HeldFor // it has no place behind others
	}
	switch bad := b.check(k.whole, &c); {
	case bad != nil:
		e.Wait, e.Because, e.Err = -1, CauseNever, bad
	case k.limits.lacks(&c): // a share, and calls fail with the store's error
		e.Wait, e.Because = -1, CauseLimit
		for i := len(e.Limits) - 1; i >= 0; i-- {
			if l := &e.Limits[i]; l.Wait < 0 && !l.Limit.inFlight {
				e.Limit = l.Label
			}
		}
	case r.inFlight != nil && r.used >= int(r.inFlight.Capacity):
		e.Wait, e.Because, e.Limit = -1, CauseInFlight, r.inFlight.label()
	case e.Wait <= 0:
	case e.HeldFor >= e.Wait-e.HeldFor:
		e.Because = CauseHold
	case longest > e.Booked-e.HeldFor:
		e.Because = CauseLimit
	default:
		e.Because = CauseBooked
	}
	return e, nil
}

// explainLimits tells of each limit, and returns the longest wait that one of them alone makes.
func (e *Explanation) explainLimits(r *reply, k *Clock) (longest time.Duration) {
	alone, by := k.state, k.limits.law
	alone.Rem, alone.Last = 0, 0
	units, law, most := r.force.units(&e.Cost), 0, time.Duration(0)
	for _, state := range r.states() {
		l := LimitWait{State: state, Label: state.Limit.label(), Units: 1}
		if state.Limit.inFlight {
			if r.used >= int(r.inFlight.Capacity) {
				l.Wait = -1
			}
			e.Limits = append(e.Limits, l)
			continue
		}
		l.Units = e.Cost[state.Limit.Unit]
		if is := &by[law]; is.Kind == leak.Leaky && is.Capacity == 1 {
			l.Apart = alone.Real(is.Above(1, 0))
		}
		l.Wait = waitAlone(by, law, units[law], &alone)
		longest = max(longest, l.Wait)
		if own := e.own(&l, &by[law], units[law], alone.Level[law].Level, &alone); own > most {
			most, e.Limit = own, l.Label
		}
		e.Limits = append(e.Limits, l)
		law++
	}
	return longest
}

// own is the part of a limit's wait of which it is the cause. A place that was booked far ahead for the sake of another
// limit fills a leaky one above its brim, up to that place.
func (e *Explanation) own(l *LimitWait, law *leak.Limit, n, level float64, alone *leak.State) time.Duration {
	if e.Booked == 0 || law.Kind != leak.Leaky || level <= law.Capacity {
		return l.Wait
	}
	return max(l.Wait-e.Booked, alone.Real(law.Above(law.Capacity+n, law.Capacity)))
}

// waitAlone returns how long it is until the limit i has room for n units, if nothing is held.
func waitAlone(law []leak.Limit, i int, n float64, s *leak.State) time.Duration {
	l, level := &law[i], &s.Level[i]
	switch {
	case n <= 0:
		return 0
	case l.Takes(n) > l.Capacity:
		return -1
	case s.Logs != nil:
		var only leak.Units
		only[i] = n
		w, _ := s.Wait(law, &only)
		return s.Real(w)
	case l.Kind == leak.Leaky:
		return s.Real(l.Above(level.Level+n, l.Capacity))
	case level.Level+n <= l.Capacity*(1+0.5e-9): // as the law has it
		return 0
	case l.Kind.Calendar():
		return time.Duration(level.Top)
	}
	return s.Real(time.Duration(level.Top))
}

// String explains in words, on a line each for the answer, the hold, the speed and the limits:
//
//	"github": would wait 480ms for limit "per hour"
//	  limit "10 per 1s": 1 each 101ms, room for 1 now
//	  limit "per hour": level 49.6667 of 50, room for 1 in 480ms
func (e Explanation) String() string {
	var s strings.Builder
	s.WriteString(quote(e.Key) + ": " + e.answer())
	if e.HeldFor > 0 {
		s.WriteString("\n  held for " + span(e.HeldFor))
		if why := e.Reason.String(); why != "" {
			s.WriteString(" (" + why + ")")
		}
	}
	switch {
	case e.Refusals == 1:
		s.WriteString("\n  the API has refused the latest call")
	case e.Refusals > 1:
		fmt.Fprintf(&s, "\n  the API has refused %d calls in a row", e.Refusals)
	}
	if e.Speed < 1 {
		fmt.Fprintf(&s, "\n  slowed to %s %% after refusals", number(math.Round(1000*e.Speed)/10))
	}
	if e.Ahead > 0 && e.Because != CauseBooked {
		fmt.Fprintf(&s, "\n  %d ahead of it in the queue", e.Ahead)
	}
	if e.Booked > 0 {
		s.WriteString("\n  calls are booked for the next " + span(e.Booked))
	}
	for i := range e.Limits {
		s.WriteString("\n  " + e.Limits[i].String())
	}
	return s.String()
}

// answer is the first line without the key.
func (e *Explanation) answer() string {
	in := "would wait " + span(e.Wait)
	switch e.Because {
	case CauseLimit:
		if e.Wait < 0 {
			return "cannot go while the store is away, for limit " + quote(e.Limit)
		}
		return in + " for limit " + quote(e.Limit)
	case CauseHold:
		return in + " for the hold to end"
	case CauseBooked:
		if e.Ahead > 0 {
			return in + fmt.Sprintf(" for those ahead of it, %d in the queue", e.Ahead)
		}
		return in + " for calls that are booked"
	case CauseInFlight:
		return "would wait until a call in progress ends, for limit " + quote(e.Limit)
	case CauseNever:
		if e.Err == nil { // nobody has explained
			return "can never go"
		}
		return "can never go: " + e.Err.Error()
	}
	return "would go now"
}

// String explains what the limit does to the call, on one line.
func (l *LimitWait) String() string {
	s := "limit " + quote(l.Limit.label()) + ": "
	if l.Limit.inFlight {
		return s + number(l.Level) + " of " + number(l.Limit.Capacity) + " calls in progress"
	}
	if l.Apart > 0 {
		s += "1 each " + span(l.Apart)
	} else if l.Level > l.Limit.Capacity*(1+1e-9) { // how far a leaky one is above it tells when the last booked call goes, and not how many are
		s += "more than " + number(l.Limit.Capacity) + " of " + number(l.Limit.Capacity)
	} else {
		s += "level " + number(l.Level) + " of " + number(l.Limit.Capacity)
	}
	switch {
	case l.Units == 0:
		return s
	case l.Wait < 0:
		if law := l.Limit.law(); law.Takes(l.Units) <= law.Capacity { // it is the share that lacks it
			return s + ", no room for " + number(l.Units) + " while the store is away"
		}
		return s + ", never room for " + number(l.Units)
	case l.Wait == 0:
		return s + ", room for " + number(l.Units) + " now"
	}
	return s + ", room for " + number(l.Units) + " in " + span(l.Wait)
}

// span is a duration without digits that nobody reads.
func span(d time.Duration) string {
	switch {
	case d >= time.Minute:
		d = nearestTo(d, time.Second)
	case d >= time.Millisecond:
		d = nearestTo(d, time.Millisecond)
	}
	return short(d)
}

// nearestTo returns the multiple of a unit that is nearest to d.
func nearestTo(d, unit time.Duration) time.Duration { return (d + unit/2) / unit * unit }

// LogValue returns the same as a group, for package log/slog, with the limits in the words of String.
func (e Explanation) LogValue() slog.Value {
	all := []slog.Attr{slog.String("key", e.Key), slog.Duration("wait", e.Wait), slog.String("because", e.Because.String())}
	if e.Limit != "" {
		all = append(all, slog.String("limit", e.Limit))
	}
	if e.HeldFor > 0 {
		all = append(all, slog.Duration("held_for", e.HeldFor), slog.String("reason", e.Reason.String()))
	}
	if e.Refusals > 0 {
		all = append(all, slog.Int("refusals", e.Refusals))
	}
	if e.Speed < 1 {
		all = append(all, slog.Float64("speed", e.Speed))
	}
	if e.Ahead > 0 {
		all = append(all, slog.Int("ahead", e.Ahead))
	}
	if e.Booked > 0 {
		all = append(all, slog.Duration("booked", e.Booked))
	}
	if e.Err != nil {
		all = append(all, slog.String("err", e.Err.Error()))
	}
	if len(e.Limits) > 0 {
		words := make([]string, len(e.Limits))
		for i := range e.Limits {
			words[i] = e.Limits[i].String()
		}
		all = append(all, slog.Any("limits", words))
	}
	return slog.GroupValue(all...)
}

// MarshalJSON writes the fields, durations in nanoseconds, the text of Err, and as Text what String says.
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
