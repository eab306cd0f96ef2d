package profile

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// bare is a bare item of a structured field (RFC 9651).
type bare struct {
	kind byte   // none, or one of those below
	n    int64  // of an integer
	text string // of a string, token, decimal or byte sequence, as it stands in the field
}

const (
	none    = 0
	integer = 'i'
	decimal = 'd'
	quoted  = 's'
	token   = 't'
	octets  = 'b'
	other   = 'o' // a boolean, date or display string: read to find its end, and skipped
)

// name returns the text of a string or a token.
func (b bare) name() (string, bool) {
	switch {
	case b.kind == token, b.kind == quoted && strings.IndexByte(b.text, '\\') < 0:
		return b.text, true
	case b.kind == quoted:
		var plain strings.Builder
		for i := 0; i < len(b.text); i++ {
			if b.text[i] == '\\' {
				i++
			}
			plain.WriteByte(b.text[i])
		}
		return plain.String(), true
	}
	return "", false
}

// bytes returns a byte sequence; nil: it is none.
func (b bare) bytes() []byte {
	if b.kind != octets {
		return nil
	}
	plain, _ := base64.RawStdEncoding.DecodeString(strings.TrimRight(b.text, "="))
	return plain
}

// item is a member of a structured field: in a dictionary its key, its value, and the
// parameters that tell of limits.
type item struct {
	key                   string
	value                 bare
	q, qu, w, pk, r, t, a bare
}

// fields reads structured fields, item by item and without allocation. It takes all of the
// grammar, because one item that it did not understand would void the field. It keeps only
// what tells of limits.
type fields struct {
	s    string
	i    int
	dict bool
	next bool // an item has been read
	bad  bool // the field is malformed: the whole of it is ignored
}

// item reads the next member into it, and reports whether there was one.
func (f *fields) item(it *item) bool {
	if f.bad {
		return false
	}
	if f.next {
		f.skip(" \t")
		if f.end() {
			return false
		}
		if !f.take(',') {
			return f.fail()
		}
		f.skip(" \t")
		if f.end() {
			return f.fail()
		}
	} else {
		f.skip(" ")
		if f.end() {
			return false
		}
	}
	f.next = true
	*it = item{}
	if f.dict {
		if it.key = f.key(); it.key == "" {
			return f.fail()
		}
		if !f.take('=') {
			it.value.kind = other // true
			return f.params(it)
		}
	}
	if f.peek() == '(' {
		it.value.kind = other
		return f.inner() && f.params(it)
	}
	return f.bare(&it.value) && f.params(it)
}

func (f *fields) end() bool { return f.i >= len(f.s) }

func (f *fields) fail() bool {
	f.bad = true
	return false
}

func (f *fields) peek() byte {
	if f.end() {
		return 0
	}
	return f.s[f.i]
}

func (f *fields) take(c byte) bool {
	if f.end() || f.s[f.i] != c {
		return false
	}
	f.i++
	return true
}

func (f *fields) skip(blanks string) {
	for !f.end() && strings.IndexByte(blanks, f.s[f.i]) >= 0 {
		f.i++
	}
}

// inner reads an inner list.
func (f *fields) inner() bool {
	f.take('(')
	for {
		f.skip(" ")
		if f.take(')') {
			return true
		}
		var it item
		if !f.bare(&it.value) || !f.params(&it) {
			return f.fail()
		}
		if c := f.peek(); c != ' ' && c != ')' {
			return f.fail()
		}
	}
}

// params reads the parameters of an item. Of several with one name the last counts.
func (f *fields) params(it *item) bool {
	for f.take(';') {
		f.skip(" ")
		key := f.key()
		if key == "" {
			return f.fail()
		}
		value := bare{kind: other}
		if f.take('=') && !f.bare(&value) {
			return false
		}
		switch key {
		case "q":
			it.q = value
		case "qu":
			it.qu = value
		case "w":
			it.w = value
		case "pk":
			it.pk = value
		case "r":
			it.r = value
		case "t":
			it.t = value
		case "a":
			it.a = value
		}
	}
	return true
}

// key reads a key; "": there is none.
func (f *fields) key() string {
	from := f.i
	for !f.end() {
		c := f.s[f.i]
		if !('a' <= c && c <= 'z' || c == '*' || f.i > from && (isDigit(c) || c == '_' || c == '-' || c == '.')) {
			break
		}
		f.i++
	}
	return f.s[from:f.i]
}

func (f *fields) bare(b *bare) bool {
	switch c := f.peek(); {
	case c == '"':
		b.kind = quoted
		return f.quoted(b)
	case c == '-' || isDigit(c):
		return f.number(b)
	case c == '*' || isAlpha(c):
		from := f.i
		for !f.end() && tokenChars[f.s[f.i]] {
			f.i++
		}
		b.kind, b.text = token, f.s[from:f.i]
		return true
	case c == ':':
		return f.octets(b)
	case c == '?':
		f.i++
		b.kind = other
		return f.take('0') || f.take('1') || f.fail()
	case c == '@':
		f.i++
		if !f.number(b) || b.kind != integer {
			return f.fail()
		}
		*b = bare{kind: other}
		return true
	case c == '%':
		f.i++
		b.kind = other
		return f.display()
	}
	return f.fail()
}

// number reads an integer of up to 15 digits, or a decimal of up to 12 and 3.
func (f *fields) number(b *bare) bool {
	from := f.i
	negative := f.take('-')
	first, point, n := f.i, -1, int64(0)
	for !f.end() {
		switch c := f.s[f.i]; {
		case isDigit(c) && point < 0:
			if f.i-first >= 15 {
				return f.fail()
			}
			n = 10*n + int64(c-'0')
		case isDigit(c):
			if f.i-point > 3 {
				return f.fail()
			}
		case c == '.' && point < 0:
			if f.i-first > 12 || f.i == first {
				return f.fail()
			}
			point = f.i
		default:
			return f.numberEnd(b, from, first, point, n, negative)
		}
		f.i++
	}
	return f.numberEnd(b, from, first, point, n, negative)
}

func (f *fields) numberEnd(b *bare, from, first, point int, n int64, negative bool) bool {
	switch {
	case f.i == first, point == f.i-1:
		return f.fail()
	case point >= 0:
		b.kind, b.text = decimal, f.s[from:f.i]
		return true
	case negative:
		n = -n
	}
	b.kind, b.n = integer, n
	return true
}

func (f *fields) quoted(b *bare) bool {
	f.i++
	for from := f.i; !f.end(); f.i++ {
		switch c := f.s[f.i]; {
		case c == '"':
			b.text = f.s[from:f.i]
			f.i++
			return true
		case c == '\\':
			f.i++
			if c := f.peek(); c != '"' && c != '\\' {
				return f.fail()
			}
		case c < ' ' || c > '~':
			return f.fail()
		}
	}
	return f.fail()
}

// octets reads a byte sequence. The padding is optional.
func (f *fields) octets(b *bare) bool {
	f.i++
	n := strings.IndexByte(f.s[f.i:], ':')
	if n < 0 {
		return f.fail()
	}
	text := f.s[f.i : f.i+n]
	digits := strings.TrimRight(text, "=")
	for i := range len(digits) {
		if c := digits[i]; !isAlpha(c) && !isDigit(c) && c != '+' && c != '/' {
			return f.fail()
		}
	}
	if len(digits)%4 == 1 || len(text) != len(digits) && (len(text)%4 != 0 || len(text)-len(digits) > 2) {
		return f.fail()
	}
	f.i += n + 1
	b.kind, b.text = octets, text
	return true
}

// display reads a display string after its first percent sign.
func (f *fields) display() bool {
	if !f.take('"') {
		return f.fail()
	}
	var utf [utf8.UTFMax]byte // of a character that is not complete yet
	n := 0
	for ; !f.end(); f.i++ {
		c := f.s[f.i]
		switch {
		case c == '"':
			f.i++
			return n == 0 || f.fail()
		case c == '%':
			if f.i+2 >= len(f.s) {
				return f.fail()
			}
			high, low := hex(f.s[f.i+1]), hex(f.s[f.i+2])
			if high > 15 || low > 15 {
				return f.fail()
			}
			c = high<<4 | low
			f.i += 2
		case c < ' ' || c > '~':
			return f.fail()
		}
		utf[n] = c
		n++
		switch r, _ := utf8.DecodeRune(utf[:n]); {
		case !utf8.FullRune(utf[:n]): // more bytes follow
		case r == utf8.RuneError && n < 3:
			return f.fail()
		case r == utf8.RuneError && string(utf[:n]) != "\uFFFD":
			return f.fail()
		default:
			n = 0
		}
	}
	return f.fail()
}

// hex returns the value of a lower-case hexadecimal digit, or more than 15.
func hex(c byte) byte {
	switch {
	case isDigit(c):
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isAlpha(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// tokenChars are the characters of a token after its first.
var tokenChars = func() (set [256]bool) {
	for c := range set {
		set[c] = isAlpha(byte(c)) || isDigit(byte(c)) || strings.IndexByte("!#$%&'*+-.^_`|~:/", byte(c)) >= 0
	}
	return set
}()
