package profile

import (
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"
)

// An Answer is a response as a function Judge sees it. It is not to be kept.
type Answer struct {
	Status int
	Header http.Header
	// Body is the beginning of the body, if Peeks lists the response and the
	// media type fits; otherwise nil. It is not to be changed.
	Body []byte

	clock time.Time // the API's, if it tells it
	left  int       // bytes of headers that may still be read
}

// Get returns the first line of a header, without the blanks around it, or "" if
// there is none or it is longer than 1 KiB.
func (a *Answer) Get(name string) string {
	for v := range a.Lines(name) {
		return v
	}
	return ""
}

// Lines returns the lines of a header, without the blanks around them: the first
// 16, but for those longer than 1 KiB, and none once 4 KiB have been read.
func (a *Answer) Lines(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range lines(a.Header, canonical(name)) {
			if len(v) > maxValue || a.left <= 0 {
				continue
			}
			if a.left -= len(v) + perValue; !yield(strings.Trim(v, " \t")) {
				return
			}
		}
	}
}

// list returns the lines of a header as the one list that they are.
func (a *Answer) list(name string) string {
	return strings.Join(slices.Collect(a.Lines(name)), ",")
}

// JSON returns a string, number or boolean of the body as text, at most 1 KiB, or
// "" if there is none. The path names the members of objects from the outside to
// the inside; of an array, the first element counts that has the rest of it. It
// ends after 1024 values.
func (a *Answer) JSON(path ...string) string { return text(find(a.Body, path)) }

// each calls f for the values in some members of the body, in one go.
func (a *Answer) each(f func(path []byte, value func() string), members ...string) {
	each(a.Body, f, members...)
}

// Number reads digits with or without decimals, and nothing else: no sign, no
// exponent, no NaN.
func Number(v string) (float64, bool) { return number(v) }

// Until reads a point in time, in any of the forms that are read in headers, and
// returns how long it is until then by the API's own clock, at least 0.
func (a *Answer) Until(v string) (time.Duration, bool) {
	if len(v) > maxValue {
		return 0, false
	}
	at, ok := stamp(v)
	return max(0, between(a.clock, at)), ok
}
