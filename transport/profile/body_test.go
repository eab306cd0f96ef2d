package profile_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
		Name:   "looker",
		Bodies: []profile.Body{{Status: 429}},
		Types:  []string{"text/xml"},
		Judge:  func(r *profile.Response, _ *profile.Signal) { *seen = bytes.Clone(r.Body) },
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

// A body that was looked at reads, fails and closes as before.
func TestBody_ReadsAsBefore(t *testing.T) {
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
				resp := carrying(429, w)
				resp.ContentLength = length
				looker(&seen).Read(resp, now)
				if want := text[:min(len(text), 8<<10)]; string(seen) != want {
					t.Fatalf("%s, %d bytes: seen %d bytes, want %d", name, len(text), len(seen), len(want))
				}
				got, err := io.ReadAll(resp.Body)
				var want error
				if name == "error" || name == "late" {
					want = errCut
				}
				errorIf(t, string(got) != text || !errors.Is(err, want),
					"%s, %d bytes: then %d bytes, %v, want %v", name, len(text), len(got), err, want)
				errorIf(t, w.closed != 0, "%s: closed already", name)
				err = resp.Body.Close()
				errorIf(t, !errors.Is(err, errCut) || w.closed != 1, "%s: closed %d times, %v", name, w.closed, err)
			}
		}
	}
}

// Only a body that Bodies and Types list is read, and none that is a connection.
func TestBody_OnlyListedOnesAreRead(t *testing.T) {
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
		errorIf(t, !c.touched && resp.Body != io.ReadCloser(w),
			"%d %.60q: the body was replaced", c.status, c.headers)
	}
	connection := struct {
		*wire
		io.Writer
	}{&wire{Reader: strings.NewReader("{}")}, io.Discard}
	for _, body := range []io.ReadCloser{nil, http.NoBody, connection} {
		var seen []byte
		resp := carrying(429, body)
		looker(&seen).Read(resp, now)
		errorIf(t, resp.Body != body || seen != nil || connection.read > 0, "the body %v was read, or replaced by %v", body, resp.Body)
	}
}

// stuck brings neither bytes nor an end.
type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }
func (stuck) Close() error             { return nil }

// wild claims to have read more bytes than it had space for.
type wild struct{ stuck }

func (wild) Read(p []byte) (int, error) { return len(p) + 7, io.EOF }

// A body that breaks the contract of io.Reader does no harm.
func TestBody_BreaksItsContract(t *testing.T) {
	for _, body := range []io.ReadCloser{stuck{}, wild{}} {
		var seen []byte
		resp := carrying(429, body)
		looker(&seen).Read(resp, now)
		errorIf(t, len(seen) != 0, "%T: saw %d bytes", body, len(seen))
	}
}

// JSON finds the first value of a path, and nothing in a text that is cut off or malformed.
func TestResponse_JSON(t *testing.T) {
	for _, c := range []struct {
		body, path, want string
	}{
		{`{"a":"x"}`, "a", "x"},
		{` { "b" : { "a" : [1, 2] } , "a" : 1.50 } `, "a", "1.50"},
		{`{"b":{"a":"inner"},"a":"outer"}`, "a", "outer"},
		{`{"b":{"a":"inner"}}`, "b.a", "inner"},
		{`{"b":[{"c":1},{"a":"second"},{"a":"third"}]}`, "b.a", "second"},
		{`{"a":null}`, "a", ""},
		{`{"a":"q\"u\\o\u0041\n"}`, "a", "q\"u\\oA\n"},
		{`{"a":"` + strings.Repeat("x", 2000) + `"}`, "a", ""},
		{`{"x":"}],\"a\":1","a":2}`, "a", "2"},
		{`{"a":1`, "a", ""}, // perhaps 10
		{`{"a":"cut`, "a", ""},
		{`{a:1}`, "a", ""},
		{`"a"`, "a", ""},
		{strings.Repeat("[", 5000), "a", ""},
		{`{"a":1,"a":2}`, "a", "1"},
		{`{"a":"\ud800"}`, "a", "\uFFFD"},
		{`{"a":"\x"}`, "a", ""},
	} {
		got := ""
		p := &profile.Profile{Name: "finder", Bodies: []profile.Body{{Status: 400}}, Judge: func(r *profile.Response, _ *profile.Signal) {
			got = r.JSON(strings.ReplaceAll(c.path, ".", "/"))
		}}
		p.Read(withBody(answer(400), "application/json", c.body), now)
		errorIf(t, got != c.want, "%s in %.60s: %q, want %q", c.path, c.body, got, c.want)
	}
}

// A body that net/http has not unpacked is looked at, and reads as before.
func TestBody_GzippedReadsAsBefore(t *testing.T) {
	const text = `{"message":"You have exceeded a secondary rate limit."}`
	long := strings.Repeat("0123456789abcdef", 8<<10)
	for name, c := range map[string]struct {
		body, encoding, saw string
		unpacked            bool // net/http has unpacked it
	}{
		"gzip":               {body: zipped(t, text), encoding: "gzip", saw: text},
		"another case":       {body: zipped(t, text), encoding: " GZIP ", saw: text},
		"unpacked already":   {body: text, encoding: "gzip", unpacked: true, saw: text},
		"with a mark":        {body: zipped(t, "\ufeff"+text), encoding: "gzip", saw: text},
		"empty":              {body: zipped(t, ""), encoding: "gzip", saw: ""},
		"cut off":            {body: zipped(t, text)[:len(zipped(t, text))-9], encoding: "gzip", saw: text},
		"nothing but a name": {body: "\x1f\x8b", encoding: "gzip", saw: ""},
		"none":               {body: text, encoding: "gzip", saw: ""},
		"much of little":     {body: zipped(t, long), encoding: "gzip", saw: long[:8<<10]},
		"two in a row":       {body: zipped(t, text) + zipped(t, "more"), encoding: "gzip", saw: text},
	} {
		var seen []byte
		resp := carrying(429, io.NopCloser(strings.NewReader(c.body)), "Content-Encoding", c.encoding)
		resp.Uncompressed = c.unpacked
		looker(&seen).Read(resp, now)
		errorIf(t, string(seen) != c.saw, "%s: saw %.60q, want %.60q", name, seen, c.saw)
		got, err := io.ReadAll(resp.Body)
		errorIf(t, string(got) != c.body || err != nil, "%s: the body has become %.60q, %v", name, got, err)
	}
}

// after is a reader that waits before it goes on, unless it is closed.
type after struct {
	io.Reader
	wait time.Duration
	gone chan struct{}
}

func (a *after) Read(p []byte) (int, error) {
	if a.wait > 0 {
		select {
		case <-time.After(a.wait):
			a.wait = 0
		case <-a.gone:
			return 0, io.ErrClosedPipe
		}
	}
	return a.Reader.Read(p)
}

func (a *after) Close() error {
	close(a.gone)
	return nil
}

// slowly returns a 429 with these headers, whose body comes in two parts.
func slowly(first string, wait time.Duration, second io.Reader, headers ...string) *http.Response {
	rest := &after{second, wait, make(chan struct{})}
	return carrying(429, struct {
		io.Reader
		io.Closer
	}{io.MultiReader(strings.NewReader(first), rest), rest}, headers...)
}

// ReadEarly reports a refusal by its headers if the body takes more than 10 ms, and waits 2 s for the body.
func TestReadEarly_ReportsARefusalWhoseBodyIsLate(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		profile    *profile.Profile
		first, and string
		wait       time.Duration
		header     []string
		early      string // the reason and the wait
		then       string
	}{
		"prompt":            {profile.OpenAI, `{"error":{}}`, ``, 0, []string{"Retry-After", "7"}, "", "0s rate 7s"},
		"almost prompt":     {profile.OpenAI, `{"error":`, `{"code":"insufficient_quota"}}`, 9 * time.Millisecond, nil, "", "9ms quota 0s"},
		"late":              {profile.OpenAI, `{"error":`, `{"code":"insufficient_quota"}}`, s, []string{"Retry-After", "7"}, "10ms rate 7s", "1s quota 7s"},
		"known by a part":   {profile.OpenAI, `{"error":{"code":"insufficient_quota",`, `"a":1}}`, s, nil, "10ms quota 0s", "1s quota 0s"},
		"too late":          {profile.OpenAI, ``, `{"error":{"code":"insufficient_quota"}}`, 3 * s, nil, "10ms rate 0s", "2s rate 0s"},
		"a lock":            {profile.Stripe, ``, `{"error":{"code":"lock_timeout"}}`, s, nil, "10ms rate 0s", "1s lock 0s"},
		"not looked at":     {profile.Generic, ``, `{}`, s, []string{"Retry-After", "7"}, "", "0s rate 7s"},
		"a date, a penalty": {profile.Airtable, ``, `{}`, s, []string{"Date", "Fri, 01 Jan 2027 00:00:00 GMT"}, "10ms rate 30s", "1s rate 30s"},
	} {
		bubble(t, name, func(t *testing.T) {
			start, early := time.Now(), ""
			resp := slowly(c.first, c.wait, strings.NewReader(c.and), c.header...)
			say := func(s profile.Signal) string {
				return fmt.Sprint(time.Since(start), " ", s.Reason, " ", s.Wait)
			}
			got := c.profile.ReadEarly(resp, time.Time{}, func(s profile.Signal) {
				early += say(s)
				errorIf(t, s.Date.IsZero() != (resp.Header.Get("Date") == ""), "the date is %v", s.Date)
			})
			errorIf(t, early != c.early || say(got) != c.then,
				"early %q, and then %q; want %q, %q", early, say(got), c.early, c.then)
			text, err := io.ReadAll(resp.Body)
			errorIf(t, string(text) != c.first+c.and || err != nil, "the body has become %q, %v", text, err)
			err = resp.Body.Close()
			errorIf(t, err != nil, "%v", err)
		})
	}
}

// A body that is late.
func TestReadEarly_WaitsForTheBody(t *testing.T) {
	bubble(t, "A refusal that only the body shows is not reported early", func(t *testing.T) {
		resp := slowly("", time.Second, strings.NewReader(`{"errors":[{"extensions":{"code":"RATELIMITED"}}]}`))
		resp.StatusCode = 400
		s := profile.Linear.ReadEarly(resp, time.Time{}, func(profile.Signal) { t.Error("reported early") })
		errorIf(t, !s.Throttled, "%+v", s)
		_ = resp.Body.Close()
	})
	bubble(t, "Close ends the goroutine that reads a body that stalls", func(t *testing.T) { // the bubble ends only when all goroutines have ended
		resp := slowly("x", 24*time.Hour, strings.NewReader(""))
		_ = profile.GitHub.Read(resp, now)
		err := resp.Body.Close()
		errorIf(t, err != nil, "%v", err)
		_, _ = resp.Body.Read(make([]byte, 1))
		n, err := resp.Body.Read(make([]byte, 1))
		errorIf(t, n != 0 || err != io.ErrClosedPipe, "read %d, %v", n, err)
	})
}

// The program reads all bytes in order, also those that come after the profile has stopped waiting.
func TestBody_AStallLosesNothing(t *testing.T) {
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"whole":         func(r io.Reader) io.Reader { return r },
		"bytes":         iotest.OneByteReader,
		"EOF with data": iotest.DataErrReader,
		"an error":      func(r io.Reader) io.Reader { return io.MultiReader(r, iotest.ErrReader(errCut)) },
	} {
		for _, length := range []int{0, 1, 5000, 20_000} {
			synctest.Test(t, func(t *testing.T) {
				first, second := strings.Repeat("a", 3000), strings.Repeat("b", length)
				start := time.Now()
				resp := slowly(first, 5*time.Second, wrap(strings.NewReader(second)))
				var seen []byte
				looker(&seen).Read(resp, now)
				if took := time.Since(start); took != 2*time.Second || string(seen) != first {
					t.Errorf("%s, %d: saw %d bytes in %v", name, length, len(seen), took)
				}
				got, err := io.ReadAll(resp.Body)
				errorIf(t, string(got) != first+second || name == "an error" != errors.Is(err, errCut),
					"%s, %d: then %d bytes, %v", name, length, len(got), err)
				_ = resp.Body.Close()
			})
		}
	}
}

// bomb is a body that panics when it is read.
type bomb struct{ stuck }

func (bomb) Read([]byte) (int, error) { panic("bang") }

// A panic of the body reaches its reader.
func TestBody_PanicReachesItsReader(t *testing.T) {
	resp := carrying(429, bomb{})
	for name, read := range map[string]func(){
		"looked at": func() { _ = profile.GitHub.Read(resp, now) },
		"read":      func() { _, _ = resp.Body.Read(make([]byte, 1)) },
	} {
		func() {
			defer func() {
				equal(t, recover(), "bang", "%s: panicked with", name)
			}()
			read()
		}()
	}
}

// While net/http waits for the first bytes of a body that it unpacks, that body cannot be closed. The body that
// Read leaves can.
func TestBody_AGzippedStallCanBeClosed(t *testing.T) {
	end := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-req.Context().Done():
		case <-end:
		}
	}))
	defer api.Close()
	defer close(end)
	resp := must(api.Client().Get(api.URL))
	_ = profile.GitHub.Read(resp, now)
	done := make(chan error, 1)
	go func() { done <- resp.Body.Close() }()
	select {
	case err := <-done:
		errorIf(t, err != nil, "%v", err)
	case <-time.After(time.Minute):
		t.Error("Close still hangs after a minute")
	}
}
