package profile

import (
	"cmp"
	"iter"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"
)

const (
	maxRead  = 4 << 10 // bytes of values of one response
	perValue = 64      // bytes that a value counts at least: parsing a date costs more than its length
	maxValue = 1 << 10 // bytes of one line
	maxUsage = 8 << 10 // bytes of one line for Judge: Meta's cover many objects
	maxLines = 16      // of one header
	maxNames = 128     // headers to range over; where there are more, the known ones are looked up
)

// candidates are the headers that may be about limits.
type candidates struct {
	few   [7]line
	n     int  // how many there are, which may be more than a few
	size  int  // bytes of their values
	cache bool // the response may come from a cache
}

// line is a header with its lines.
type line struct {
	name  string
	lines []string
}

// scan looks for headers about limits. It runs for every response.
func (f *candidates) scan(h http.Header) {
	if len(h) > maxNames {
		f.n, f.cache = len(h), true
		return
	}
	for name, v := range h {
		switch {
		case len(name) < len("Ratelimit") || strings.IndexByte(name, 'm') < 0 && !asksToWait(name): // most, for little time
			f.cache = f.cache || name == "Age"
		case len(v) > 0 && aboutLimits(name):
			v = v[:min(len(v), maxLines)]
			if f.n < len(f.few) {
				f.few[f.n] = line{name, v}
			}
			f.n++
			for _, one := range v {
				f.size += perValue + min(len(one), maxValue)
			}
		case name == "X-From-Cache":
			f.n, f.cache = f.n+1, true // which counts alone, too
		}
	}
}

// aboutLimits reports whether the name of a header may be that of a limit or a wait.
func aboutLimits(name string) bool {
	m := strings.IndexByte(name, 'm')
	return m > 0 && len(name) >= len("Ratelimit") && (strings.HasPrefix(name[m-1:], "imit") ||
		strings.Contains(name[m:], "imit") || strings.Contains(name[m-1:], "emaining")) || asksToWait(name)
}

// asksToWait reports whether a header may be a Retry-After.
func asksToWait(name string) bool {
	return strings.HasSuffix(name, "etry-After") || strings.HasSuffix(name, "etry-After-Ms")
}

// lines returns the headers to read: the common ones if there are too many. The order does not
// depend on Go's maps if there is too much to read all.
func (r *reader) lines(star bool) (all []line) {
	if r.n <= len(r.few) && r.size <= maxRead && !star {
		return r.few[:r.n]
	}
	names := commonNames
	if len(r.header) <= maxNames {
		names = slices.Collect(maps.Keys(r.header))
	}
	for _, name := range names {
		if star || aboutLimits(name) {
			all = append(all, line{name, lines(r.header, name)})
		}
	}
	if r.size > maxRead {
		slices.SortFunc(all, func(a, b line) int { return waitsFirst(a.name, b.name) })
	}
	return all
}

// waitsFirst orders names so that the wait is read before there is too much.
func waitsFirst(a, b string) int {
	return cmp.Or(cmp.Compare(min(strings.Index(b, "etry-After"), 0), min(strings.Index(a, "etry-After"), 0)), strings.Compare(a, b))
}

// reader reads one response into a Signal.
type reader struct {
	p      *Profile
	header http.Header
	candidates
	left  int // bytes that may still be read
	now   time.Time
	at    time.Time // the API's clock, once that is known
	dated bool
	ms    time.Duration // the longest wait in milliseconds, or None
	s     Signal        // by value: a pointer to it would cost an allocation

	groups list[group]
}

// lines returns the lines of a header, at most maxLines.
func lines(h http.Header, name string) []string {
	v := h[name]
	return v[:min(len(v), maxLines)]
}

// trim returns a value without the blanks around it.
func trim(v string) string { return textproto.TrimString(v) }

// first returns the first value of a list, as a proxy makes one of several lines.
func first(v string) string {
	v, _, _ = strings.Cut(v, ",")
	return trim(v)
}

// each returns the lines, trimmed, except those that are too long. It ends when too much has been
// read.
func (r *reader) each(lines []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range lines {
			if len(v) > maxValue || r.left <= 0 {
				continue
			}
			if r.left -= len(v) + perValue; !yield(trim(v)) {
				return
			}
		}
	}
}

// cached reports whether the response comes out of a cache. Its headers describe the API of an
// earlier time.
func (r *reader) cached() bool {
	return r.cache && (slices.ContainsFunc(lines(r.header, "X-From-Cache"), func(v string) bool { return v != "" }) ||
		slices.ContainsFunc(lines(r.header, "Age"), func(v string) bool {
			v = first(v[:min(len(v), perValue)])
			return allDigits(v) && strings.Trim(v, "0") != ""
		}))
}

// clock returns what the API's clock showed when it answered, or else the local time.
func (r *reader) clock() time.Time {
	if r.at.IsZero() {
		r.at = r.now
		if v := r.header["Date"]; len(v) > 0 { // another Date would be a proxy's
			if at, ok := timestamp(trim(v[0])); ok {
				r.at, r.dated = at, true
			}
		}
	}
	return r.at
}
