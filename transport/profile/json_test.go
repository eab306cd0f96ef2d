package profile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// found returns what a finder finds, after its path.
func found(body string, paths ...string) (all []string) {
	for v := find([]byte(body), paths...); v.next(); {
		all = append(all, v.path()+"="+v.value)
	}
	return all
}

// A finder finds all values at its paths in one pass.
func TestFinder_FindsAllValuesInOnePass(t *testing.T) {
	deep := func(n int) string { return `{"a":` + strings.Repeat("[", n) + "1" + strings.Repeat("]", n) + "}" }
	long := strings.Repeat("k", 200)
	for _, c := range []struct {
		body string
		want []string
	}{
		{`{"a":"x","b":2}`, []string{"a=x", "b=2"}},
		{`{"c":{"a":1},"a":{"c":true},"d":[1]}`, []string{"a/c=true"}},
		{` [ {"a" : [ {"b":"1"}, {"b":"2", "c":null} ] } , {"a":3} ] `, []string{"a/b=1", "a/b=2", "a/c=", "a=3"}},
		{`{"a":[[1,[2]],{"b":3}]}`, []string{"a=1", "a=2", "a/b=3"}},
		{`{"a":"q\"u\\o\u0041"}`, []string{`a=q"u\oA`}},
		{`{"a":{"` + long + `":1,"k` + long + `":2,"b":3}}`, []string{"a/" + long + "=1", "a/b=3"}},
		{`{"a":{"b":{"c":1,"a":{"b":2}},"bc":3},"ab":4,"":{"a":5,"a/b":6},"a/b":7}`, []string{"a/b/c=1", "a/b=7"}},
		{`{"a":"` + strings.Repeat("x", 2000) + `","b":1}`, []string{"a=", "b=1"}},
		{`{"a":1,"b":"cut`, []string{"a=1"}},
		{`{"a":1,"b":12`, []string{"a=1"}},
		{`{"a":1,b:2}`, []string{"a=1"}},
		{`{"a":1,"b" 2}`, []string{"a=1"}},
		{`{"a":1}{"b":2}`, []string{"a=1"}},
		{deep(16), []string{"a=1"}},
		{deep(17), nil},
		{``, nil}, {`{`, nil}, {`[`, nil}, {`{"a"`, nil}, {`{"a":`, nil}, {`{"a":}`, nil}, {`1 `, nil},
	} {
		got := found(c.body, "a", "b", "a/b", "a/c", "a/b/c", "a/"+long)
		errorIf(t, !slices.Equal(got, c.want), "%.80s: %.200q, want %.200q", c.body, got, c.want)
	}
}

// A search ends after a bounded number of values.
func TestFinder_EndsAfterMaxSteps(t *testing.T) {
	many := func(n int) string {
		return `{"x":[` + strings.Repeat("0,", n) + `0],"a":[` + strings.Repeat("0,", n) + `1],"b":2}`
	}
	got := found(many(100), "a", "b")
	errorIf(t, len(got) != 102, "%d values, want 102", len(got))
	n, want := len(found(many(2000), "a", "b")), (maxSteps+readSteps)/(1+readSteps)
	errorIf(t, n != want, "%d values, want %d", n, want)
	got = found(many(2000), "b")
	errorIf(t, len(got) != 1 || got[0] != "b=2", "%q, want b=2 next to what is not looked for", got)
	got = found(many(2000), "a/b", "b")
	errorIf(t, len(got) != 0, "%q after %d values, want nothing", got, maxSteps)
}

// wanted are the paths that FuzzFind looks for.
var wanted = []string{"a", "b", "a/a", "a/b", "b/a", "b/a/b", "c/a"}

// flat returns what a finder should find, as encoding/json reads it.
func flat(d *json.Decoder, path string, depth int, all []string) ([]string, error) {
	token, err := d.Token()
	if err != nil {
		return all, err
	}
	open, container := token.(json.Delim)
	if !container {
		if token == nil {
			token = ""
		}
		if depth <= maxDepth+1 && slices.Contains(wanted, path) {
			all = append(all, path+"="+fmt.Sprint(token))
		}
		return all, nil
	}
	for d.More() {
		inner := path
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return all, err
			}
			inner = strings.TrimPrefix(path+"/"+key.(string), "/")
		}
		if all, err = flat(d, inner, depth+1, all); err != nil {
			return all, err
		}
	}
	_, err = d.Token()
	return all, err
}

// In a body that encoding/json can read, a finder finds what encoding/json finds.
func FuzzFind(f *testing.F) {
	for _, body := range []string{`{"a":{"b":"x"}}`, `[{"a":[{"c":1},{"b":true}]}]`, `{"a":{"b":"\u00fc\"\\"}}`, `{"x":"}","a":{"b":-1.5e3}}`, `{"a":[1,{"b":null},{"b":2}]}`, `{"a":`, `{"":{"a":1}}`, `{"a":[[[]]],"b":{}}`} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		got := found(body, wanted...)
		if !json.Valid([]byte(body)) || !utf8.ValidString(body) || strings.ContainsAny(body, `\/`) || strings.Contains(body, `""`) || len(body) > 200 {
			return // encoding/json reads names in another way
		}
		d := json.NewDecoder(strings.NewReader(body + " "))
		d.UseNumber()
		want, err := flat(d, "", 0, nil)
		errorIf(t, err == nil && !slices.Equal(got, want), "%q: %q, want %q", body, got, want)
	})
}
