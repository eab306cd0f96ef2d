package profile

import (
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A Response is a response as a function Judge sees it. Judge must not keep it.
type Response struct {
	Status int
	Header http.Header
	// Body is the beginning of the body, if Bodies lists the response and the media type fits;
	// otherwise nil. Judge must not change it.
	Body []byte

	clock time.Time // the API's, or else the local one
	left  int       // bytes of headers that may still be read
}

// Get returns the first line of a header, trimmed, or "" if it is missing or longer than 8 KiB.
func (r *Response) Get(name string) string {
	for v := range r.Lines(name) {
		return v
	}
	return ""
}

// Lines returns the lines of a header, trimmed: the first 16, except those longer than 8 KiB. After
// 4 KiB of all headers together no further line begins.
func (r *Response) Lines(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range lines(r.Header, http.CanonicalHeaderKey(name)) {
			if len(v) > maxUsage || r.left <= 0 {
				continue
			}
			if r.left -= len(v) + perValue; !yield(trim(v)) {
				return
			}
		}
	}
}

// list returns the lines of a header joined into one list.
func (r *Response) list(name string) string {
	return strings.Join(slices.Collect(r.Lines(name)), ",")
}

// JSON returns a string, number or boolean of the body as text, at most 1 KiB, or "" if there is
// none. The path names the members of objects from the outside to the inside, with slashes between
// them: "error/code". In an array, the first element counts that has the rest of the path. The
// search ends after 1,024 values.
func (r *Response) JSON(path string) string {
	f := find(r.Body, path)
	_, value := f.step() // as a field of f it would move f's paths to the heap
	return value
}

// Number reads digits, with or without decimals. It rejects signs, exponents and NaN.
func Number(v string) (float64, bool) { return number(v) }

// Until reads a time in any of the forms of headers, such as seconds since 1970 or a date. It
// returns how long it is until then by the API's own clock, at least 0. A number that may be a time
// from now is no point in time.
func (r *Response) Until(v string) (time.Duration, bool) {
	if len(v) > maxValue {
		return 0, false
	}
	at, ok := timestamp(v)
	if n, numeric := number(v); numeric {
		at, ok = epoch(n, func() time.Time { return r.clock })
	}
	return max(0, between(r.clock, at)), ok
}
