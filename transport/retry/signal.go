package retry

import (
	"net/http"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// signal is what a response says about the API's limits.
type signal struct {
	throttled    bool
	refused      bool          // and certainly not carried out
	permanent    bool          // and coming back does not help before somebody does something
	wait         time.Duration // 0: it does not say
	limiterHolds bool          // the transport tells the limiter, which then holds all calls
}

// classify reads a response as the transport does.
func classify(p *profile.Profile, resp *http.Response) signal {
	s := p.Read(resp, time.Now())
	return signalOf(resp.StatusCode, &s)
}

// signalOf returns what the transport has read of a response, for the request. What the
// transport's OnSignal makes of it is about the limiter, and does not count here: a refusal
// of another scope is one for this request as well.
func signalOf(status int, s *profile.Signal) signal {
	if !s.Throttled {
		return signal{}
	}
	got := signal{throttled: true, wait: s.Wait}
	switch s.Reason {
	case profile.Rate, profile.Quota, profile.Concurrency:
		got.limiterHolds = true
	case profile.Unknown:
		got.limiterHolds = s.Wait > 0
	}
	switch s.Reason {
	case profile.Rate, profile.Concurrency, profile.Lock:
		got.refused = true
	case profile.Quota:
		got.refused, got.permanent = true, s.Wait <= 0 || unpaid(s.Detail)
	default: // an API with troubles of its own may fail half-way
		got.refused = status == http.StatusTooManyRequests
	}
	// With such a status no other reason proves either that nothing was done, unless it is
	// the API's own word, as AWS has SlowDown.
	if status >= 500 && s.Detail == "" {
		got.refused, got.permanent = false, false
	}
	if !got.refused && got.wait <= 0 {
		return signal{} // a failure like others
	}
	return got
}

// unpaid reports whether the API's word for a refusal means that the account has no credit.
// Then no time in the response brings any.
func unpaid(detail string) bool {
	return strings.Contains(detail, "insufficient_quota") || strings.Contains(detail, "billing")
}
