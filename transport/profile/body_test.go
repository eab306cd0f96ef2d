package profile_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

var errCut = errors.New("cut off")

// looker returns a profile that looks at the body of every 429, and remembers what it saw.
func looker(seen *[]byte) *profile.Profile {
	return &profile.Profile{
		Name:  "looker",
		Peeks: []profile.Peek{{Status: 429}},
		Types: []string{"text/xml"},
		Judge: func(r *profile.Response, _ *profile.Signal) { *seen = bytes.Clone(r.Body) },
	}
}

// wire is a body that counts how it is used.
type wire struct {
	io.Reader
	read, closed int
	closeErr     error
}

func (w *wire) Read(p []byte) (int, error) {
	w.read++
	return w.Reader.Read(p)
}

func (w *wire) Close() error {
	w.closed++
	return w.closeErr
}

func TestABodyThatWasLookedAtReadsAsBefore(t *testing.T) {
	short, full, long := `{"a":1}`, strings.Repeat("x", 8<<10), strings.Repeat("y", 70_001)
	for _, text := range []string{"", short, full[:4096], full[:4097], full[:len(full)-1], full, full + "z", long} {
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"plain": func(r io.Reader) io.Reader { return r },
			"bytes": iotest.OneByteReader,
			"eof":   iotest.DataErrReader,
			"error": func(r io.Reader) io.Reader { return io.MultiReader(r, iotest.ErrReader(errCut)) },
			"late": func(r io.Reader) io.Reader {
				return iotest.DataErrReader(io.MultiReader(r, iotest.ErrReader(errCut)))
			},
		} {
			for _, length := range []int64{-1, int64(len(text)), 3} {
				if length == 0 {
					continue
				}
				var seen []byte
				w := &wire{Reader: wrap(strings.NewReader(text)), closeErr: errCut}
				resp := answer(429, "Content-Type", "application/json")
				resp.Body, resp.ContentLength = w, length
				looker(&seen).Read(resp, now)
				if want := text[:min(len(text), 8<<10)]; string(seen) != want {
					t.Fatalf("%s, %d bytes: seen %d bytes, want %d", name, len(text), len(seen), len(want))
				}
				got, err := io.ReadAll(resp.Body)
				var want error
				if name == "error" || name == "late" {
					want = errCut
				}
				if string(got) != text || !errors.Is(err, want) {
					t.Errorf("%s, %d bytes: then %d bytes, %v, want %v", name, len(text), len(got), err, want)
				}
				if w.closed != 0 {
					t.Errorf("%s: closed already", name)
				}
				if err := resp.Body.Close(); !errors.Is(err, errCut) || w.closed != 1 {
					t.Errorf("%s: closed %d times, %v", name, w.closed, err)
				}
			}
		}
	}
}

func TestOnlyListedBodiesOfTheRightTypeAreTouched(t *testing.T) {
	for _, c := range []struct {
		status  int
		headers []string
		touched bool
	}{
		{429, []string{"Content-Type", "application/json"}, true},
		{429, []string{"Content-Type", "APPLICATION/JSON ; charset=utf-8"}, true},
		{429, []string{"Content-Type", "application/problem+json"}, true},
		{429, []string{"Content-Type", "application/x-amz-json-1.1"}, true},
		{429, []string{"Content-Type", "text/xml; charset=utf-8"}, true},
		{429, []string{"Content-Type", "application/json", "Content-Encoding", "br"}, false},
		{429, []string{"Content-Type", "application/json", "Content-Encoding", "gzip, gzip"}, false},
		{429, []string{"Content-Type", "application/json", "Age", "1"}, false},
		{429, nil, false},
		{429, []string{"Content-Type", "text/event-stream"}, false},
		{429, []string{"Content-Type", "application/x-ndjson"}, false},
		{429, []string{"Content-Type", "application/jsonx"}, false},
		{429, []string{"Content-Type", strings.Repeat("x", 1<<20) + "+json"}, false},
		{200, []string{"Content-Type", "application/json"}, false},
		{503, []string{"Content-Type", "application/json", "Retry-After", "3"}, false},
	} {
		var seen []byte
		w := &wire{Reader: strings.NewReader("{}")}
		resp := answer(c.status, c.headers...)
		resp.Body, resp.ContentLength = w, -1
		looker(&seen).Read(resp, now)
		if touched := w.read > 0; touched != c.touched || touched != (seen != nil) {
			t.Errorf("%d %.60q: read %d times, saw %q", c.status, c.headers, w.read, seen)
		}
		if !c.touched && resp.Body != io.ReadCloser(w) {
			t.Errorf("%d %.60q: the body was replaced", c.status, c.headers)
		}
	}
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		var seen []byte
		resp := answer(429, "Content-Type", "application/json")
		resp.Body, resp.ContentLength = body, -1
		if looker(&seen).Read(resp, now); resp.Body != body || seen != nil {
			t.Errorf("the body %v was replaced by %v", body, resp.Body)
		}
	}
}

// stuck brings neither bytes nor an end.
type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }
func (stuck) Close() error             { return nil }

// wild claims to have read more bytes than it had space for.
type wild struct{ stuck }

func (wild) Read(p []byte) (int, error) { return len(p) + 7, io.EOF }

func TestBodiesThatBreakTheirContractDoNoHarm(t *testing.T) {
	for _, body := range []io.ReadCloser{stuck{}, wild{}} {
		var seen []byte
		resp := answer(429, "Content-Type", "application/json")
		resp.Body, resp.ContentLength = body, -1
		if looker(&seen).Read(resp, now); len(seen) != 0 {
			t.Errorf("%T: saw %d bytes", body, len(seen))
		}
	}
}

// duplex is the body of a response that is a connection.
type duplex struct {
	wire
	wrote  bytes.Buffer
	halves int
}

func (d *duplex) Write(p []byte) (int, error) { return d.wrote.Write(p) }
func (d *duplex) CloseWrite() error           { d.halves++; return nil }

func TestABodyThatIsAConnectionIsNotLookedAt(t *testing.T) {
	var seen []byte
	d := &duplex{wire: wire{Reader: strings.NewReader("{}")}}
	resp := answer(429, "Content-Type", "application/json")
	resp.Body, resp.ContentLength = d, -1
	looker(&seen).Read(resp, now)
	if _, err := io.WriteString(resp.Body.(io.Writer), "hello"); err != nil || d.wrote.String() != "hello" {
		t.Errorf("wrote %q, %v", d.wrote.String(), err)
	}
	if err := resp.Body.(interface{ CloseWrite() error }).CloseWrite(); err != nil || d.halves != 1 {
		t.Errorf("closed half %d times, %v", d.halves, err)
	}
	if seen != nil || d.read > 0 {
		t.Errorf("saw %q in %d reads", seen, d.read)
	}
	if got, err := io.ReadAll(resp.Body); string(got) != "{}" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}

// Looking at a body means waiting for it, so the profiles list few.
func TestLookingAtABodyWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		go func() {
			time.Sleep(time.Second)
			_, _ = io.WriteString(w, `{"message":"You have exceeded a secondary rate limit"}`)
			w.Close()
		}()
		resp := answer(403, "Content-Type", "application/json")
		resp.Body, resp.ContentLength = r, -1
		start := time.Now()
		if s := profile.GitHub.Read(resp, now); !s.Throttled || s.Scope != "secondary" || time.Since(start) != time.Second {
			t.Errorf("%+v after %v", s, time.Since(start))
		}
	})
}

func TestValuesOfABodyAreFoundByTheirPath(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100)
	for _, c := range []struct {
		body, path, want string
	}{
		{`{"a":"x"}`, "a", "x"},
		{` { "b" : { "a" : [1, 2] } , "a" : 1.50 } `, "a", "1.50"},
		{`{"b":{"a":"inner"},"a":"outer"}`, "a", "outer"},
		{`{"b":{"a":"inner"}}`, "b.a", "inner"},
		{`{"b":[{"c":1},{"a":"second"},{"a":"third"}]}`, "b.a", "second"},
		{`[[{"a":true}]]`, "a", "true"},
		{`{"a":["x","y"]}`, "a", "x"},
		{`{"a":null}`, "a", ""},
		{`{"a":{"b":1}}`, "a", ""},
		{`{"a":"q\"u\\o\u0041\n"}`, "a", "q\"u\\oA\n"},
		{`{"k\"ey":1,"a":2}`, "a", "2"},
		{`{"a":"` + strings.Repeat("x", 2000) + `"}`, "a", ""},
		{`{"x":"}],\"a\":1","a":2}`, "a", "2"},
		{`{"x":[{"y":"]"}],"a":2}`, "a", "2"},
		{`{"a":1`, "a", ""}, // perhaps 10
		{`{"a":"cut`, "a", ""},
		{`{"a":"cut"`, "a", ""},
		{`{"a":1,"b":"cut`, "a", "1"},
		{`{"a"`, "a", ""},
		{`{"a":`, "a", ""},
		{`{a:1}`, "a", ""},
		{`"a"`, "a", ""},
		{`null`, "a", ""},
		{``, "a", ""},
		{deep, "a.a", ""},
		{strings.Repeat("[", 5000), "a", ""},
		{strings.Repeat("[", 16) + `{"a":1}` + strings.Repeat("]", 16), "a", "1"},
		{strings.Repeat("[", 17) + `{"a":1}` + strings.Repeat("]", 17), "a", ""},
		{`{"a":1,"a":2}`, "a", "1"},
		{`{"a":"\ud800"}`, "a", "\uFFFD"},
		{`{"a":"\x"}`, "a", ""},
	} {
		got := ""
		p := &profile.Profile{Name: "finder", Peeks: []profile.Peek{{Status: 400}}, Judge: func(r *profile.Response, _ *profile.Signal) {
			got = r.JSON(strings.ReplaceAll(c.path, ".", "/"))
		}}
		p.Read(withBody(answer(400), "application/json", c.body), now)
		if got != c.want {
			t.Errorf("%s in %.60s: %q, want %q", c.path, c.body, got, c.want)
		}
	}
}
