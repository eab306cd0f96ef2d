package outbound

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// limitJSON is a [Limit] as JSON.
type limitJSON struct {
	Kind     string        `json:"kind,omitempty"`
	Capacity float64       `json:"capacity"`
	LeakRate float64       `json:"leak_rate,omitempty"`
	Unit     int           `json:"unit,omitempty"`
	Name     string        `json:"name,omitempty"`
	N        float64       `json:"n,omitempty"`
	Per      time.Duration `json:"per,omitempty"`
	Zone     string        `json:"zone,omitempty"`
	InFlight bool          `json:"in_flight,omitempty"`
}

// kinds are the names of limits in JSON; those of a leaky one have none.
var kinds = [...]string{leak.Moving: "window", leak.Fixed: "fixed_window", leak.Hourly: "hourly", leak.Daily: "daily", leak.Monthly: "monthly"}

// MarshalJSON writes all of the limit, so that [Limit.UnmarshalJSON] makes an
// equal one of it: {"capacity":1,"leak_rate":0.99,"n":1,"per":1000000000}. What
// [Per] was made with, n and the window in nanoseconds, is there only for limits
// that it has made. A window or a calendar has a kind, and no leak rate:
// {"kind":"window","capacity":100,"per":10000000000}, or "fixed_window";
// {"kind":"daily","capacity":10000,"zone":"America/Los_Angeles"}, or "monthly", or
// "hourly" without a zone. A limit that its maker, Burst or Of have made invalid is a
// [*LimitError].
func (l Limit) MarshalJSON() ([]byte, error) {
	if l.flaw != "" {
		return nil, &LimitError{Limit: l, Reason: l.flaw}
	}
	if l.unnamed() {
		l.Name = ""
	}
	out := limitJSON{kinds[l.kind], l.Capacity, l.LeakRate, l.Unit, l.Name, l.n, l.window, l.zone, l.inFlight}
	if l.kind != leak.Leaky {
		if flaw := l.check(); flaw != "" {
			return nil, &LimitError{Limit: l, Reason: flaw}
		}
		out.LeakRate = 0
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes. A limit that [NewBucket] would
// refuse is a [*LimitError], and so is null; the limit then stays as it was.
func (l *Limit) UnmarshalJSON(data []byte) error {
	var in limitJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("outbound: limit: %w", err)
	}
	out, flaw := in.limit()
	if flaw == "" {
		flaw = out.check()
	}
	if flaw != "" {
		return &LimitError{Limit: out, Reason: flaw}
	}
	*l = out
	return nil
}

// limit returns the limit that was written, and what is wrong with the writing, or "".
func (in *limitJSON) limit() (l Limit, flaw string) {
	kind := leak.Kind(max(0, slices.Index(kinds[:], in.Kind)))
	switch {
	case kinds[kind] != in.Kind:
		return l, "kind " + quote(in.Kind) + ` is none of "window", "fixed_window", "hourly", "daily" and "monthly"`
	case kind == leak.Leaky:
		l = Limit{Capacity: in.Capacity, LeakRate: in.LeakRate, Unit: in.Unit, Name: in.Name, n: in.N, window: in.Per, zone: in.Zone, inFlight: in.InFlight}
		return l, l.made()
	case in.LeakRate != 0 || in.N != 0 || in.InFlight:
		return l, "a " + in.Kind + " has no leak rate, no n, and no calls at once"
	case kind.Calendar() == (in.Per != 0), kind > leak.Hourly == (in.Zone == ""):
		return l, "a window has a per, a day or a month a zone, and an hour neither"
	}
	switch kind {
	case leak.Moving:
		l = Window(in.Capacity, in.Per)
	case leak.Fixed:
		l = FixedWindow(in.Capacity, in.Per)
	default:
		l = Limit{Capacity: in.Capacity, zone: in.Zone, kind: kind}
	}
	return l.Of(in.Unit, in.Name), ""
}

// made returns what is wrong with what InFlight and Per have noted, or "".
func (l *Limit) made() string {
	switch {
	case l.inFlight && (l.Capacity != math.Trunc(l.Capacity) || l.LeakRate != 0 || l.n != 0 || l.window != 0 || l.zone != ""):
		return "InFlight has a whole number of calls, and neither a leak rate nor a window or a zone"
	case l.n == 0 && l.window == 0:
	case !(l.n > 0):
		return "n " + number(l.n) + " is not above 0"
	case l.window <= 0 || l.window > maxWait-jitter:
		return fmt.Sprintf("a window of %v is not above 0 and below 292 years", l.window)
	}
	return ""
}
