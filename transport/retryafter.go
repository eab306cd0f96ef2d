package transport

import (
	"math"
	"net/http"
	"strings"
	"time"
)

const (
	maxLines = 16  // of one header; the rest of a flood is not read
	maxValue = 128 // bytes of one value
	// forever is what longer waits count as.
	forever = time.Duration(math.MaxInt64)
)

// refusal reports whether the response says that the API has refused the call
// because of its limits, and how long it asks to wait; 0: it did not say. That
// is 429, and 503 only if it says when to come back: otherwise the API has
// troubles of its own.
func refusal(resp *http.Response) (time.Duration, bool) {
	switch resp.StatusCode {
	default:
		return 0, false
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
	}
	if cached(resp.Header) {
		return 0, false
	}
	d := retryAfter(resp.Header)
	return d, d > 0 || resp.StatusCode == http.StatusTooManyRequests
}

// cached reports whether the response comes out of a cache, so that it says
// nothing about the API now.
func cached(h http.Header) bool {
	if h.Get("X-From-Cache") != "" {
		return true
	}
	age := strings.Trim(h.Get("Age"), " \t")
	return allDigits(age) && strings.Trim(age, "0") != ""
}

// retryAfter returns the longest wait that the values of Retry-After ask for,
// or 0 if none asks for any that can be understood.
func retryAfter(h http.Header) time.Duration {
	values := h["Retry-After"]
	longest := time.Duration(0)
	for _, v := range values[:min(len(values), maxLines)] {
		if v = strings.Trim(v, " \t"); len(v) > maxValue {
			continue
		}
		if d, ok := delaySeconds(v); ok {
			longest = max(longest, d)
		} else if at, ok := timestamp(v); ok {
			longest = max(longest, until(at, h))
		}
	}
	return longest
}

// until returns how long it is until a point in time by the API's own clock, if
// the response tells that, and 0 if it is over. A second is added because such
// stamps, and Date, are cut to whole seconds.
func until(at time.Time, h http.Header) time.Duration {
	from, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		from = time.Now()
	}
	d := at.Sub(from)
	if d <= 0 {
		return 0
	}
	return min(d, forever-time.Second) + time.Second
}

// timestamp reads the three forms of dates of HTTP, and RFC 3339, which is not
// one of them but is sent.
func timestamp(v string) (time.Time, bool) {
	at, err := http.ParseTime(v)
	if err != nil {
		at, err = time.Parse(time.RFC3339, v)
	}
	return at, err == nil
}

// delaySeconds reads digits, and decimals, which are sent although the grammar
// does not have them. It is no strconv.ParseFloat, which takes NaN, Inf, 0x1p4
// and 1_000, too. A part of a nanosecond counts as a whole one.
func delaySeconds(v string) (time.Duration, bool) {
	whole, part, decimal := strings.Cut(v, ".")
	if !allDigits(whole) || len(whole) > 20 || decimal && !allDigits(part) {
		return 0, false
	}
	d := time.Duration(0)
	for _, c := range []byte(whole) {
		digit := time.Duration(c-'0') * time.Second
		if d > (forever-digit)/10 {
			return forever, true
		}
		d = 10*d + digit
	}
	unit := time.Second
	ns := time.Duration(0)
	for _, c := range []byte(part) {
		if unit /= 10; unit > 0 {
			ns += time.Duration(c-'0') * unit
		} else if c != '0' {
			ns++
			break
		}
	}
	if d > forever-ns {
		return forever, true
	}
	return d + ns, true
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
