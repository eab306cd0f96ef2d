package retry

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	maxLines = 16  // of one header; the rest of a flood is not read
	maxValue = 128 // bytes of one value
)

// signal is what a response says about the API's limits.
type signal struct {
	throttled bool
	refused   bool          // and what the request asks for was certainly not done
	wait      time.Duration // 0: it does not say
}

// classify reads a response.
func classify(resp *http.Response) signal {
	status := resp.StatusCode
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable || cached(resp.Header) {
		return signal{}
	}
	d := retryAfter(resp.Header)
	return signal{
		throttled: status == http.StatusTooManyRequests || d > 0,
		refused:   status == http.StatusTooManyRequests,
		wait:      d,
	}
}

// cached reports whether a cache has answered, which would answer the same
// again.
func cached(h http.Header) bool {
	if h.Get("X-From-Cache") != "" {
		return true
	}
	age := strings.Trim(h.Get("Age"), " \t")
	return digits(age) && strings.Trim(age, "0") != ""
}

// retryAfter returns the longest wait that the values of Retry-After ask for,
// or 0 if none asks for any that can be understood.
func retryAfter(h http.Header) time.Duration {
	values := h["Retry-After"]
	longest := time.Duration(0)
	for _, v := range values[:min(len(values), maxLines)] {
		if v = strings.Trim(v, " \t"); len(v) <= maxValue {
			longest = max(longest, delay(v, h))
		}
	}
	return longest
}

// delay reads one value: seconds, with decimals or without, or a date.
func delay(v string, h http.Header) time.Duration {
	if whole, part, decimal := strings.Cut(v, "."); digits(whole) && (!decimal || digits(part)) {
		// Digits alone: ParseFloat would take NaN, Inf, 0x1p4 and 1_000 as well.
		seconds, err := strconv.ParseFloat(v, 64)
		if ns := math.Ceil(seconds * 1e9); err == nil && ns < math.MaxInt64 {
			return time.Duration(ns)
		}
		return forever
	}
	at, err := http.ParseTime(v)
	if err != nil {
		if at, err = time.Parse(time.RFC3339, v); err != nil {
			return 0
		}
	}
	from, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		from = time.Now()
	}
	d := at.Sub(from)
	if d <= 0 {
		return 0
	}
	return min(d, forever-time.Second) + time.Second // such stamps are cut to whole seconds
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
