package profile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// told returns the values that each calls its function for, after their paths.
func told(body string, members ...string) (all []string) {
	each([]byte(body), func(path []byte, value func() string) {
		all = append(all, string(path)+"="+value())
	}, members...)
	return all
}

func TestAllValuesOfABodyAreFoundInOnePass(t *testing.T) {
	deep := func(n int) string { return `{"a":` + strings.Repeat("[", n) + "1" + strings.Repeat("]", n) + "}" }
	for _, c := range []struct {
		body string
		want []string
	}{
		{`{"a":"x","b":2}`, []string{"a=x", "b=2"}},
		{`{"c":{"a":1},"a":{"c":true},"d":[1]}`, []string{"a/c=true"}},
		{` [ {"a" : [ {"b":"1"}, {"b":"2", "c":null} ] } , {"a":3} ] `, []string{"a/b=1", "a/b=2", "a/c=", "a=3"}},
		{`{"a":[[1,[2]],{"b":3}]}`, []string{"a=1", "a=2", "a/b=3"}},
		{`{"a":"q\"u\\o\u0041"}`, []string{`a=q"u\oA`}},
		{`{"a":{"` + strings.Repeat("k", 126) + `":1,"` + strings.Repeat("k", 127) + `":2,"b":3}}`, []string{"a/" + strings.Repeat("k", 126) + "=1", "a/b=3"}},
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
		got := told(c.body, "a", "b")
		if !slices.Equal(got, c.want) {
			t.Errorf("%.80s: %.200q, want %.200q", c.body, got, c.want)
		}
	}
}

func TestSearchesInABodyEnd(t *testing.T) {
	many := func(n int) string {
		return `{"x":[` + strings.Repeat("0,", n) + `0],"a":[` + strings.Repeat("0,", n) + `1],"b":2}`
	}
	if got := told(many(100), "a", "b"); len(got) != 102 {
		t.Errorf("%d values, want 102", len(got))
	}
	if got, want := len(told(many(2000), "a", "b")), (maxSteps+readSteps)/(1+readSteps); got != want {
		t.Errorf("%d values, want %d", got, want)
	}
	n := 0
	each([]byte(many(2000)), func([]byte, func() string) { n++ }, "a", "b")
	if n != maxSteps-2 {
		t.Errorf("%d values, want %d", n, maxSteps-2)
	}
	if got := string(find([]byte(many(1000)), []string{"b"})); got != "2" {
		t.Errorf("b is %q among what nobody looks for", got)
	}
	if got := string(find([]byte(many(2000)), []string{"a", "b"})); got != "" {
		t.Errorf("a/b is %q", got)
	}
}

// flat returns what each should tell of, as encoding/json reads it.
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
		if top, _, _ := strings.Cut(path, "/"); depth <= maxDepth && (top == "a" || top == "b") && len(path) <= maxName {
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

// In a body that encoding/json can read, each tells what encoding/json finds.
func FuzzEach(f *testing.F) {
	for _, body := range []string{`{"a":{"b":"x"}}`, `[{"a":[{"c":1},{"b":true}]}]`, `{"a":{"b":"\u00fc\"\\"}}`, `{"x":"}","a":{"b":-1.5e3}}`, `{"a":[1,{"b":null},{"b":2}]}`, `{"a":`, `{"":{"a":1}}`, `{"a":[[[]]],"b":{}}`} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		got := told(body, "a", "b")
		if !json.Valid([]byte(body)) || !utf8.ValidString(body) || strings.ContainsAny(body, `\/`) || strings.Contains(body, `""`) || len(body) > 200 {
			return // encoding/json reads names in another way
		}
		d := json.NewDecoder(strings.NewReader(body + " "))
		d.UseNumber()
		want, err := flat(d, "", 0, nil)
		if err == nil && !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	})
}
