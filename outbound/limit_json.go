package outbound

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// limitJSON is a [Limit] as JSON.
type limitJSON struct {
	Capacity float64       `json:"capacity"`
	LeakRate float64       `json:"leak_rate,omitempty"`
	Unit     int           `json:"unit,omitempty"`
	Name     string        `json:"name,omitempty"`
	N        float64       `json:"n,omitempty"`
	Per      time.Duration `json:"per,omitempty"`
	AtOnce   bool          `json:"at_once,omitempty"`
}

// MarshalJSON writes all of the limit, so that [Limit.UnmarshalJSON] makes an
// equal one of it: {"capacity":1,"leak_rate":0.99,"n":1,"per":1000000000}. What
// [Per] was made with, n and the window in nanoseconds, is there only for limits
// that it has made. A limit that Per, Burst or Of have made invalid is a
// [*LimitError].
func (l Limit) MarshalJSON() ([]byte, error) {
	if l.flaw != "" {
		return nil, &LimitError{Limit: l, Reason: l.flaw}
	}
	return json.Marshal(limitJSON{l.Capacity, l.LeakRate, l.Unit, l.Name, l.n, l.window, l.atOnce})
}

// UnmarshalJSON reads what MarshalJSON writes. A limit that [NewBucket] would
// refuse is a [*LimitError], and so is null; the limit then stays as it was.
func (l *Limit) UnmarshalJSON(data []byte) error {
	var in limitJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("outbound: limit: %w", err)
	}
	out := Limit{Capacity: in.Capacity, LeakRate: in.LeakRate, Unit: in.Unit, Name: in.Name, n: in.N, window: in.Per, atOnce: in.AtOnce}
	flaw := out.check()
	if flaw == "" {
		flaw = out.made()
	}
	if flaw != "" {
		return &LimitError{Limit: out, Reason: flaw}
	}
	*l = out
	return nil
}

// made returns what is wrong with what AtOnce and Per have noted, or "".
func (l *Limit) made() string {
	switch {
	case l.atOnce && (l.Capacity != math.Trunc(l.Capacity) || l.LeakRate != 0 || l.n != 0 || l.window != 0):
		return "AtOnce has a whole number of calls, and neither a leak rate nor a window"
	case l.n == 0 && l.window == 0:
	case !(l.n > 0):
		return "n " + number(l.n) + " is not above 0"
	case l.window <= 0 || l.window > maxWait-jitter:
		return fmt.Sprintf("a window of %v is not above 0 and below 292 years", l.window)
	}
	return ""
}
