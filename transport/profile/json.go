package profile

import (
	"bytes"
	"encoding/json"
	"strings"
)

const (
	// maxDepth is how deep a value may lie.
	maxDepth = 16
	// maxSteps is how many values a search in a body passes. A value within a skipped value does
	// not count. Reading one counts as readSteps more.
	maxSteps  = 1024
	readSteps = 8
	maxPaths  = 64
)

// A finder finds the strings, numbers and other plain values at some paths of a JSON text:
//
//	for v := find(body, "error/code", "error/type"); v.next(); {
//		fmt.Println(v.path(), v.value)
//	}
//
// A path has the names of the members, with slashes between them. The elements of an array have
// the array's path. A finder looks at each byte once and does not check what it skips.
//
// encoding/json cannot read a text that was cut off, and its Decoder takes 2 ms for 8 KiB of
// numbers.
type finder struct {
	b     []byte
	i     int
	left  int      // steps
	paths []string // at most maxPaths
	at    int      // which of the paths the value that next has found is at
	value string   // the value, or empty if it is null, malformed or above 1 KiB

	open  [maxDepth + 1]container // those around the next value
	depth int
}

// A container is an object or an array that lies on the paths in set, whose first n bytes it has,
// with a slash.
type container struct {
	set    uint64
	n      int
	object bool
}

func find(b []byte, paths ...string) finder {
	f := finder{b: b, left: maxSteps, paths: paths}
	if c := f.peek(); len(paths) > 0 && (c == '{' || c == '[') {
		f.push(c, 1<<len(paths)-1, 0)
	}
	return f
}

func (f *finder) push(c byte, set uint64, n int) {
	f.open[f.depth] = container{set, n, c == '{'}
	f.depth++
	f.i++
}

// peek returns the next byte after blanks, or 0.
func (f *finder) peek() byte {
	for ; f.i < len(f.b); f.i++ {
		switch f.b[f.i] {
		case ' ', '\t', '\r', '\n':
		default:
			return f.b[f.i]
		}
	}
	return 0
}

// next finds the next value, and reports whether there is one.
func (f *finder) next() bool {
	f.at, f.value = f.step()
	return f.at >= 0
}

// step returns the next value and which path it is at; -1: there is none.
func (f *finder) step() (at int, value string) {
	for f.depth > 0 {
		switch f.peek() {
		case 0:
			return -1, ""
		case '}', ']':
			f.i++
			f.depth--
			continue
		case ',':
			f.i++
			continue
		}
		if f.left--; f.left < 0 {
			return -1, ""
		}
		in := &f.open[f.depth-1]
		set, n := in.set, in.n
		if in.object {
			set, n = f.key(set, n)
		}
		c, from := f.peek(), f.i
		if opens := c == '{' || c == '['; opens && set != 0 && f.depth <= maxDepth {
			f.push(c, set, n)
			continue
		} else if f.skip(); opens || f.i >= len(f.b) { // what ends with the text may have been cut off
			continue
		}
		for k, path := range f.paths {
			if set&(1<<k) != 0 && len(path) == n-1 {
				return k, f.text(f.b[from:f.i])
			}
		}
	}
	return -1, ""
}

// path returns the path of the value that next has found. A field of the string itself would move
// the finder's paths to the heap.
func (f *finder) path() string { return f.paths[f.at] }

// key reads the name of a member. It returns which paths of a set go on with it, and for how many
// bytes.
func (f *finder) key(set uint64, n int) (inner uint64, end int) {
	var key []byte
	if f.peek() == '"' {
		key = f.quoted()
	}
	if key == nil || f.peek() != ':' {
		f.i = len(f.b) // no JSON
		return 0, n
	}
	f.i++
	end = n + len(key)
	for k, path := range f.paths {
		if len(path) < end || end > n && path[n] != key[0] || set&(1<<k) == 0 {
			continue
		}
		if (len(path) == end || path[end] == '/') && path[n:end] == string(key) {
			inner |= 1 << k
		}
	}
	return inner, end + 1
}

// quoted reads a string and returns what is between its quotes, or nil if it does not end.
func (f *finder) quoted() []byte {
	b := f.b[f.i+1:]
	n := bytes.IndexByte(b, '"')
	if n > 0 && b[n-1] == '\\' { // with escapes, which takes longer
		for n = 0; n < len(b) && b[n] != '"'; n++ {
			if b[n] == '\\' {
				n++
			}
		}
	}
	if n < 0 || n >= len(b) {
		f.i = len(f.b)
		return nil
	}
	f.i += n + 2
	return b[:n]
}

// skip skips a value.
func (f *finder) skip() {
	switch f.peek() {
	case '"':
		f.quoted()
		return
	case '{', '[':
	default:
		for f.i++; f.i < len(f.b) && strings.IndexByte(",}] \t\r\n:\"{[", f.b[f.i]) < 0; f.i++ {
		}
		f.i = min(f.i, len(f.b))
		return
	}
	for open := 0; f.i < len(f.b); {
		c := f.b[f.i]
		if f.i++; !structural[c] {
			continue
		}
		switch c {
		case '"':
			f.i--
			f.quoted()
		case '{', '[':
			open++
		default:
			if open--; open == 0 {
				return
			}
		}
	}
}

// structural are the characters that begin or end something.
var structural = [256]bool{'"': true, '{': true, '[': true, '}': true, ']': true}

// text returns a string, number or boolean as text.
func (f *finder) text(value []byte) string {
	f.left -= readSteps
	switch {
	case len(value) > maxValue, string(value) == "null":
		return ""
	case value[0] != '"':
		return string(value)
	case bytes.IndexByte(value, '\\') < 0:
		return string(value[1 : len(value)-1])
	}
	f.left -= 2 * readSteps
	var s string
	if json.Unmarshal(bytes.Clone(value), &s) != nil { // a clone, so that the finder needs no heap
		return ""
	}
	return s
}
