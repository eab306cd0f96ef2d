package outbound

import (
	"strconv"
	"time"
)

// Verdict is what a limiter would have done with a call that [Shadow] has let go.
type Verdict struct {
	// Wait is how long the call would have waited. Below 0 nobody knows: callers wait for
	// answers, the store has failed, or as many calls as an [InFlight] allows were in progress.
	Wait time.Duration
	// Err is what the limiter would have returned, such as a [*ThrottledError]; nil: the call
	// would have gone. A [*StoreError] says that nobody knows, because the store has failed.
	Err error
	// Refused says that the API has refused the call.
	Refused bool
	// Demand is what calls have lately asked for, as a multiple of what the limit lets go in
	// that time: of several limits the one with the most. Lately is a minute or two, or as
	// many windows, if that is longer. Of an InFlight it tells nothing.
	Demand float64
	// Finding is what all calls so far say of the limits.
	Finding Finding
}

// Finding is what calls say of the limits of a [Shadow].
type Finding uint8

// The findings.
const (
	// FindingNone is that the calls prove nothing.
	FindingNone Finding = iota
	// FindingTooHigh is that the limiter would have admitted all calls, and the API has
	// refused one that would have gone at once: the limit is too high, or somebody else
	// uses the API's, too.
	FindingTooHigh
	// FindingTooLow is that the limiter would have refused calls, and the API took all.
	FindingTooLow
)

var findings = [...]string{"none", "too high", "too low"}

// String returns the finding in a word or two: "too high".
func (f Finding) String() string {
	if int(f) >= len(findings) {
		return "unknown"
	}
	return findings[f]
}

// String says the verdict in words: "would wait 480ms; demand 1.6 times the limit".
func (v Verdict) String() string {
	s := "demand " + strconv.FormatFloat(v.Demand, 'g', 2, 64) + " times the limit"
	switch {
	case v.Err != nil:
		s = v.Err.Error() + "; " + s
	case v.Wait > 0:
		s = "would wait " + span(v.Wait) + "; " + s
	case v.Wait == 0:
		s = "would go now; " + s
	}
	if v.Refused {
		s += "; refused by the API"
	}
	if v.Finding != FindingNone {
		s += "; the limit is " + v.Finding.String()
	}
	return s
}
