package profile

import (
	"bytes"
	"encoding/json"
)

// maxDepth is how deep a value that is looked for may lie.
const maxDepth = 16

// find returns the value at a path, as it stands in a JSON text, or nil. It
// looks at each byte once and does not check what it passes by, so that a body
// that was cut off or is wrong further on does no harm.
func find(b []byte, path []string) []byte {
	f := finder{b: b}
	if c := f.peek(); len(path) > 0 && c != '{' && c != '[' {
		return nil
	}
	return f.value(path, 0)
}

type finder struct {
	b []byte
	i int
}

// peek returns the next byte that is no blank; 0: there is none.
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
		if f.peek() != ':' {
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

// member reads the next member of an object, whose brace it passes by first, and
// returns its key and value; nil: there is none.
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

// quoted passes by a string and returns what is between its quotes.
func (f *finder) quoted() []byte {
	f.i++
	from := f.i
	// Most strings have no escapes, and are found at the speed of memory.
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

// skip passes by a value.
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
		switch f.b[f.i] {
		case '"':
			f.quoted()
			continue
		case '{', '[':
			open++
		case '}', ']':
			if open--; open == 0 {
				f.i++
				return
			}
		}
		f.i++
	}
}

// text returns what a string, number or boolean says.
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
