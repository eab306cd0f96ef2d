package outbound

// Reason is why an API has asked for a pause, as far as it has said so.
type Reason uint8

// The reasons.
const (
	ReasonUnknown     Reason = iota // nobody has said, or an operator has asked for the pause
	ReasonRate                      // too many calls in a short time
	ReasonQuota                     // the budget of a day or longer is used up
	ReasonConcurrency               // too many calls at once
	ReasonExhausted                 // nothing remained until the reset that the API had told
)

var reasons = [...]string{"", "rate", "quota", "concurrency", "exhausted"}

// String returns the reason in one word; unknown: the empty string.
func (r Reason) String() string {
	if int(r) >= len(reasons) {
		return ""
	}
	return reasons[r]
}
