package profile

import (
	"bytes"
	"encoding/json"
)

// maxDepth is how deep a value may lie that find or each returns.
const maxDepth = 16

// find returns the value at a path, as it stands in a JSON text, or nil. It looks at each
// byte once and does not check what it skips, so that a body that was cut off or is wrong
// further on does no harm.
func find(b []byte, path []string) []byte {
	f := finder{b: b, left: maxSteps}
	if c := f.peek(); len(path) > 0 && c != '{' && c != '[' {
		return nil
	}
	return f.value(path, 0)
}

type finder struct {
	b    []byte
	i    int
	left int // steps
}

// step reports whether another value may be skipped.
func (f *finder) step() bool {
	if f.left--; f.left < 0 {
		f.i = len(f.b)
	}
	return f.left >= 0
}

// peek returns the next byte that is not a blank; 0: there is none.
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

// value reads a value, and returns what lies in it at the path.
func (f *finder) value(path []string, depth int) []byte {
	c := f.peek()
	switch {
	case len(path) == 0 && c != '[', depth > maxDepth, c != '{' && c != '[':
		from := f.i
		f.skip()
		if len(path) > 0 || f.i >= len(f.b) { // what ends with the text may have been cut off
			return nil
		}
		return f.b[from:f.i]
	case c == '[':
		f.i++
		for {
			switch f.peek() {
			case 0:
				return nil
			case ']':
				f.i++
				return nil
			case ',':
				f.i++
				continue
			}
			if !f.step() {
				return nil
			}
			if found := f.value(path, depth+1); found != nil {
				return found
			}
		}
	}
	f.i++
	for {
		switch f.peek() {
		case '}':
			f.i++
			return nil
		case ',':
			f.i++
			continue
		case '"':
		default:
			f.i = len(f.b) // no JSON
			return nil
		}
		key := f.quoted()
		if f.peek() != ':' || !f.step() {
			f.i = len(f.b)
			return nil
		}
		f.i++
		if string(key) != path[0] {
			f.peek()
			f.skip()
			continue
		}
		if found := f.value(path[1:], depth+1); found != nil {
			return found
		}
	}
}

// maxSteps is how many values are skipped in a body; values within a skipped value do not
// count. Reading one counts as readSteps more.
const (
	maxSteps  = 1024
	readSteps = 8
)

// each calls f for the strings, numbers and other plain values in some members of a JSON
// text, with the path to them: the names of the members, with slashes between them. The
// elements of an array have the array's path. value returns what is there, as text does. Like
// find, each looks at each byte once, but for all members together.
func each(b []byte, f func(path []byte, value func() string), members ...string) {
	w := walker{finder: finder{b: b, left: maxSteps}, members: members, f: f, path: make([]byte, 0, maxName)}
	w.value = w.text
	w.walk(0)
}

type walker struct {
	finder
	members []string
	f       func(path []byte, value func() string)
	value   func() string
	path    []byte
	plain   []byte // the value that f gets
}

func (w *walker) text() string {
	w.left -= readSteps
	if bytes.IndexByte(w.plain, '\\') >= 0 { // decoding escapes takes longer
		w.left -= 2 * readSteps
	}
	return text(w.plain)
}

// walk reads a value and calls f for all that lies in it, down to maxDepth.
func (w *walker) walk(depth int) {
	c := w.peek()
	if depth > maxDepth || c != '{' && c != '[' {
		from := w.i
		// What ends with the text may have been cut off.
		if w.skip(); w.i < len(w.b) && c != '{' && c != '[' && len(w.path) > 0 {
			w.plain = w.b[from:w.i]
			w.f(w.path, w.value)
		}
		return
	}
	n := len(w.path)
	for w.i++; ; {
		switch w.peek() {
		case 0:
			return
		case '}', ']':
			w.i++
			return
		case ',':
			w.i++
			continue
		}
		if !w.step() {
			return
		}
		if c == '{' && !w.key(n) {
			continue
		}
		w.walk(depth + 1)
		w.path = w.path[:n]
	}
}

// key reads the name of a member and puts it after the first n bytes of the path. If nobody
// looks for it, key skips the value, too, and reports false.
func (w *walker) key(n int) bool {
	if w.peek() != '"' {
		w.i = len(w.b) // no JSON
		return false
	}
	key := w.quoted()
	if w.peek() != ':' {
		w.i = len(w.b)
		return false
	}
	w.i++
	if n+1+len(key) > maxName || n == 0 && !w.wanted(key) {
		w.peek()
		w.skip()
		return false
	}
	if n > 0 {
		w.path = append(w.path, '/')
	}
	w.path = append(w.path, key...)
	return true
}

func (w *walker) wanted(key []byte) bool {
	for _, m := range w.members {
		if m == string(key) {
			return true
		}
	}
	return false
}

// member reads the next member of an object, whose brace it skips first, and returns its key
// and value; nil: there is none.
func (f *finder) member() (key, value []byte) {
	for f.peek() == '{' || f.peek() == ',' {
		f.i++
	}
	if f.peek() != '"' {
		return nil, nil
	}
	key = f.quoted()
	if f.peek() != ':' {
		return nil, nil
	}
	f.i++
	f.peek()
	from := f.i
	f.skip()
	return key, f.b[from:f.i]
}

// quoted reads a string and returns what is between its quotes.
func (f *finder) quoted() []byte {
	f.i++
	from := f.i
	// Most strings have no escapes, and IndexByte finds their end fast.
	n := bytes.IndexByte(f.b[from:], '"')
	if n == 0 || n > 0 && f.b[from+n-1] != '\\' {
		f.i += n + 1
		return f.b[from : f.i-1]
	}
	for ; n > 0 && f.i < len(f.b); f.i++ {
		switch f.b[f.i] {
		case '\\':
			f.i++
		case '"':
			f.i++
			return f.b[from : f.i-1]
		}
	}
	f.i = len(f.b)
	return nil
}

// skip skips a value.
func (f *finder) skip() {
	switch f.peek() {
	case '"':
		f.quoted()
		return
	case '{', '[':
	default:
		for f.i++; f.i < len(f.b); f.i++ {
			switch f.b[f.i] {
			case ',', '}', ']', ' ', '\t', '\r', '\n', ':', '"', '{', '[':
				return
			}
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
func text(value []byte) string {
	switch {
	case len(value) == 0, len(value) > maxValue, value[0] == '{', value[0] == '[', string(value) == "null":
		return ""
	case value[0] != '"':
		return string(value)
	case len(value) < 2:
		return ""
	}
	plain := value[1 : len(value)-1]
	if bytes.IndexByte(plain, '\\') < 0 {
		return string(plain)
	}
	var s string
	if json.Unmarshal(value, &s) != nil {
		return ""
	}
	return s
}
