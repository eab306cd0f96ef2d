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

// Because says why, for the Refused and Hold that follow: a [ThrottledError] of
// those who have to wait carries it.
func (p *Permit) Because(r Reason) {
	if p == nil {
		return
	}
	p.reason = r
	if k, ok := p.call.(interface{ Because(Reason) }); ok {
		k.Because(r)
	}
}

func (k *call) Because(r Reason) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reason = r
}

func (o *observed) Because(r Reason) { o.once(0, 0, func(p *Permit) { p.Because(r) }) }

// why returns what Because has said.
func (o *observed) why() Reason {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.permit.reason
}
