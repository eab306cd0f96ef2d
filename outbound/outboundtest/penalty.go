package outboundtest

import (
	"fmt"
	"net/http"
	"time"
)

// Penalty refuses every call for the time rest, once the API has answered n offences within a
// window. offence recognises them by the answer's status and headers. If it is nil, each refusal
// counts. Refusals during the rest do not count, and afterwards the count begins again. A caller
// learns of the penalty by its next call. Penalty(1, time.Second, 30*time.Second, nil) shuts a
// caller out for 30 s after one refusal.
//
// The rule counts answers, so Of and Settle have no effect; By gives each key a count of
// its own. Refusals call its unit "refusals". It panics if n is below 1, or if the window
// or the rest is not above 0 and at most 100 years.
func Penalty(n int, window, rest time.Duration, offence func(status int, h http.Header) bool) Rule {
	need(n >= 1, "a penalty after %d offences: must be at least 1", n)
	needWindow(float64(n), window)
	need(rest > 0 && rest <= longest, "a penalty of %v: must be above 0 and at most 100 years", rest)
	r := newRule(float64(n), window, fmt.Sprintf("in any %v, and none for %v after those", window, rest), func() state {
		return &penalty{
			n: n, rest: int64(rest), offence: offence,
			log: slidingLog{limit: float64(n), window: int64(window)},
		}
	})
	r.unit = "refusals"
	return r
}

type penalty struct {
	n       int
	rest    int64
	offence func(status int, h http.Header) bool
	log     slidingLog // of the offences
	until   int64      // end of the last rest
}

func (p *penalty) wait(now int64, _ int, _ float64) time.Duration {
	return time.Duration(max(0, p.until-now))
}

func (p *penalty) take(int64, float64) {}

// offend counts an offence.
func (p *penalty) offend(now int64) {
	if now < p.until {
		return
	}
	p.log.forget(now)
	p.log.take(now, 1)
	if p.log.sum >= float64(p.n) {
		p.log = slidingLog{limit: p.log.limit, window: p.log.window}
		p.until = now + p.rest
	}
}

func (p *penalty) count(now int64, inProgress int) (float64, time.Duration) {
	if now < p.until {
		return float64(p.n), time.Duration(p.until - now)
	}
	return p.log.count(now, inProgress)
}

func (p *penalty) adopt(old state, now int64) bool {
	o, ok := old.(*penalty)
	if !ok || !p.log.adopt(&o.log, now) {
		return false
	}
	p.until = o.until
	return true
}

// isOffence reports whether an answer is one.
func (p *penalty) isOffence(refused bool, w http.ResponseWriter) bool {
	if p.offence == nil {
		return refused
	}
	s, ok := w.(*statusWriter)
	return ok && p.offence(s.status, w.Header())
}
