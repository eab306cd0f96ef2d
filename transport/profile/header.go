package profile

import (
	"iter"
	"net/http"
	"net/textproto"
	"strings"
	"time"
)

const (
	maxRead  = 4 << 10 // bytes of values of one response
	perValue = 64      // bytes that a value counts at least: parsing a date costs more than its length
	maxValue = 1 << 10 // bytes of one line
	maxUsage = 8 << 10 // bytes of one line of Meta's, which covers many objects
	maxLines = 16      // of one header
	maxNames = 128     // headers to range over; where there are more, the known ones are looked up
)

// The headers that are generally known.
const (
	hRetryAfter = iota
	hRetryAfterMs
	hMsRetryAfterMs
	hAmzRetryAfter
	hXRetryAfter
	hAge
	hFromCache
	hRateLimit
	hPolicy
	hLimit
	hRemaining
	hReset
	hResetTime
	hName
	hXLimit
	hXRemaining
	hXReset
	hXResetAfter
	hYLimit
	hYRemaining
	hYReset
	hNone
)

var known = [hNone]string{
	hAge: "Age", hFromCache: "X-From-Cache",
	hRetryAfter: "Retry-After", hRetryAfterMs: "Retry-After-Ms", hMsRetryAfterMs: "X-Ms-Retry-After-Ms",
	hAmzRetryAfter: "X-Amz-Retry-After", hXRetryAfter: "X-Ratelimit-Retry-After",
	hRateLimit: "Ratelimit", hPolicy: "Ratelimit-Policy", hName: "Ratelimit-Name",
	hLimit: "Ratelimit-Limit", hRemaining: "Ratelimit-Remaining",
	hReset: "Ratelimit-Reset", hResetTime: "Ratelimit-Resettime",
	hXLimit: "X-Ratelimit-Limit", hXRemaining: "X-Ratelimit-Remaining",
	hXReset: "X-Ratelimit-Reset", hXResetAfter: "X-Ratelimit-Reset-After",
	hYLimit: "X-Rate-Limit-Limit", hYRemaining: "X-Rate-Limit-Remaining", hYReset: "X-Rate-Limit-Reset",
}

// byLength are the known headers by the length of their names.
var byLength = func() (all [24][]int) {
	for n, name := range known {
		all[len(name)] = append(all[len(name)], n)
	}
	return all
}()

// slot returns which of the known headers has the canonical name, or hNone. It runs for every
// header of every response.
func slot(name string) int {
	if len(name) < len(byLength) {
		for _, n := range byLength[len(name)] {
			if known[n] == name {
				return n
			}
		}
	}
	return hNone
}

// scan returns the set of the known headers that are there, and whether there are more about
// limits. Ranging over a response's few headers is cheaper than looking up the many that are known,
// but not over a flood of them.
func scan(h http.Header) (seen uint32, more bool) {
	if len(h) > maxNames {
		for n, name := range known {
			if len(h[name]) > 0 {
				seen |= 1 << n
			}
		}
		return seen, false
	}
	for name := range h {
		if n := slot(name); n != hNone {
			seen |= 1 << n
		} else if strings.IndexByte(name, 'm') >= 0 { // which few names have, except limit and remaining
			more = more || strings.Contains(name, "imit") || strings.HasSuffix(name, "emaining")
		}
	}
	return seen, more
}

// labels are those of the known headers of a policy.
var labels = func() (all [hNone]label) {
	for n := hLimit; n < hNone; n++ {
		all[n], _ = labelOf(known[n])
	}
	return all
}()

// reader reads one response into a Signal.
type reader struct {
	p        *Profile
	header   http.Header
	seen     uint32 // the known headers that are there
	left     int    // bytes that may still be read
	now      time.Time
	date     time.Time
	dated    bool
	dateRead bool   // the header Date has been looked at
	s        Signal // by value: a pointer to it would cost an allocation

	groups list[group]
}

// lines returns the lines of a header, at most maxLines.
func lines(h http.Header, name string) []string {
	v := h[name]
	return v[:min(len(v), maxLines)]
}

// known returns the lines of one of the known headers.
func (r *reader) known(n int) []string {
	if r.seen&(1<<n) == 0 {
		return nil
	}
	return lines(r.header, known[n])
}

// take returns a line, trimmed, unless it is too long or too much has been read already.
func (r *reader) take(v string) (string, bool) {
	if len(v) > maxValue || r.left <= 0 {
		return "", false
	}
	r.left -= len(v) + perValue
	return trim(v), true
}

// trim returns a value without the blanks around it.
func trim(v string) string { return textproto.TrimString(v) }

// first returns the first value of a list, as a proxy makes one of several lines.
func first(v string) string {
	v, _, _ = strings.Cut(v, ",")
	return trim(v)
}

// each returns those lines that take returns.
func (r *reader) each(lines []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range lines {
			if v, ok := r.take(v); ok && !yield(v) {
				return
			}
		}
	}
}

// cached reports whether the response comes out of a cache. Its headers describe the API of an
// earlier time.
func (r *reader) cached() bool {
	for _, v := range r.known(hFromCache) {
		if v != "" {
			return true
		}
	}
	for _, v := range r.known(hAge) {
		if len(v) > perValue {
			continue
		}
		if v = first(v); allDigits(v) && strings.Trim(v, "0") != "" {
			return true
		}
	}
	return false
}

// clock returns what the API's clock showed when it answered, or else the local time.
func (r *reader) clock() time.Time {
	if !r.dateRead {
		r.dateRead = true
		// Another Date would be a proxy's.
		if v := r.header["Date"]; len(v) > 0 && len(v[0]) <= maxValue {
			r.date, r.dated = timestamp(trim(v[0]))
		}
	}
	if r.dated {
		return r.date
	}
	return r.now
}
