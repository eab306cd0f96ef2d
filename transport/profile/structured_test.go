package profile

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
)

// corpus has a field of each kind, and some malformed ones.
var corpus = []string{
	``, ` `, `a`, `"a"`, `100, 100;w=60;burst=1000;comment="a, b"`, `"default";r=50;t=30`, `"x"; r=0; t=900`, `"p";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:`,
	`limit=100, remaining=50, reset=5`, `a, b;x`, `a=?0, b, c;d=1`, `"a\"b\\c";r=-1.5`, `"x";d=@1788264000;n=%"f%c3%bc"`, `(1 "a" tok;x);z=1, ()`, `a=(1 2), b=1;w=2`,
	`"x";r=50;`, `"x";r=50,`, `,`, `"x`, `-`, `-1`, `1.`, `.5`, `1.1234`, `123456789012345`, `1234567890123456`, `123456789012.123`, `1234567890123.1`, `:YQ:`, `:a:`, `:YQ==`, `:====:`, `%"%C3"`,
	`%"%f0%9f%98%80"`, `%"%ff"`, `%"%c3"`, `%"%e2%82"`, `@1.5`, `?2`, `*a/b:c`, `A;b="`, `a;B=1`, `a;*=1`, "a\t,\tb", "a \t", `( 1  2 )`, `(1,2)`, `(1"a")`, `((1))`, `a=`, `=a`, `1a=2`, `%"a%ef%bf%bdb"`, `%"%ed%a0%80"`,
}

// described writes a bare item in a form that can be compared.
func (b bare) described() any {
	switch b.kind {
	case integer:
		n, _ := strconv.ParseInt(b.text, 10, 64)
		return n
	case token, quoted:
		name, _ := b.name()
		return name
	case octets:
		return b.bytes()
	case decimal:
		return decimal
	case none:
		return nil
	}
	return other
}

// described writes an item of the oracle in the same form.
func described(v any) any {
	switch v := v.(type) {
	case int64, string, []byte, nil:
		return v
	case httpsfv.Token:
		return string(v)
	case float64:
		return decimal
	}
	return other
}

func equal(a, b any) bool {
	x, ok1 := a.([]byte)
	y, ok2 := b.([]byte)
	if ok1 && ok2 {
		return bytes.Equal(x, y)
	}
	return ok1 == ok2 && a == b
}

func compare(t *testing.T, field string, it *item, m httpsfv.Member) {
	t.Helper()
	var value any = other
	var params *httpsfv.Params
	switch m := m.(type) {
	case httpsfv.Item:
		value, params = described(m.Value), m.Params
	case httpsfv.InnerList:
		params = m.Params
	}
	if got := it.value.described(); !equal(got, value) {
		t.Errorf("%q: value %v, want %v", field, got, value)
	}
	for i, got := range it.params {
		want, _ := params.Get(paramNames[i])
		if !equal(got.described(), described(want)) {
			t.Errorf("%q: parameter %s is %v, want %v", field, paramNames[i], got.described(), want)
		}
	}
}

// lenient reports whether the oracle has refused base64 without padding, which RFC 9651
// recommends to accept.
func lenient(err error) bool {
	var corrupt base64.CorruptInputError
	return errors.As(err, &corrupt)
}

func compareField(t *testing.T, field string) {
	t.Helper()
	want, err := httpsfv.UnmarshalList([]string{field})
	var got []item
	var it item
	f := fields{s: field}
	for f.item(&it) {
		got = append(got, it)
	}
	switch {
	case f.bad != (err != nil) && !lenient(err):
		t.Fatalf("%q as a list: malformed is %v, want %v", field, f.bad, err)
	case err == nil && len(got) != len(want):
		t.Fatalf("%q as a list: %d items, want %d", field, len(got), len(want))
	case err == nil:
		for i := range got {
			compare(t, field, &got[i], want[i])
		}
	}

	dict, err := httpsfv.UnmarshalDictionary([]string{field})
	f = fields{s: field, dict: true}
	last := map[string]item{}
	for f.item(&it) {
		last[it.key] = it
	}
	switch {
	case f.bad != (err != nil) && !lenient(err):
		t.Fatalf("%q as a dictionary: malformed is %v, want %v", field, f.bad, err)
	case err == nil && len(last) != len(dict.Names()):
		t.Fatalf("%q as a dictionary: %d members, want %q", field, len(last), dict.Names())
	case err == nil:
		for key, it := range last {
			m, ok := dict.Get(key)
			if !ok {
				t.Fatalf("%q: there is no member %q", field, key)
			}
			compare(t, field, &it, m)
		}
	}
}

// Structured fields are read as the package httpsfv reads them.
func FuzzStructured(f *testing.F) {
	for _, field := range corpus {
		f.Add(field)
	}
	f.Fuzz(compareField)
}

// A byte sequence needs no padding.
func TestStructured_BytesNeedNoPadding(t *testing.T) {
	for text, want := range map[string]string{`:YWI=:`: "ab", `:YWI:`: "ab", `::`: "", `:YWJj:`: "abc"} {
		var it item
		f := fields{s: "a;pk=" + text}
		if !f.item(&it) || string(it.get("pk").bytes()) != want {
			t.Errorf("%s: %q, want %q", text, it.get("pk").bytes(), want)
		}
	}
	for _, text := range []string{`:YWI==:`, `:Y:`, `:Y===:`, `:YW=I:`, `:YW I:`, `:YWI`, `:=:`} {
		f := fields{s: "a;pk=" + text}
		errorIf(t, f.item(new(item)), "%s was read", text)
	}
}

// Parameters that no field needs are skipped.
func TestStructured_SkipsOtherParameters(t *testing.T) {
	var it item
	f := fields{s: `x;z=1` + strings.Repeat(`;k="v"`, 100) + `;r=7`}
	errorIf(t, !f.item(&it) || it.get("r").text != "7" || f.item(&it) || f.bad, "%+v", it)
}
