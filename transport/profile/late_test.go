package profile_test

import (
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, early := time.Now(), ""
				resp := slowly(c.first, c.wait, strings.NewReader(c.and), c.header...)
				say := func(s profile.Signal) string {
					return fmt.Sprint(time.Since(start), " ", s.Reason, " ", s.Wait)
				}
				got := c.profile.ReadEarly(resp, time.Time{}, func(s profile.Signal) {
					early += say(s)
					if s.Date.IsZero() != (resp.Header.Get("Date") == "") {
						t.Errorf("the date is %v", s.Date)
					}
				})
				if early != c.early || say(got) != c.then {
					t.Errorf("early %q, and then %q; want %q, %q", early, say(got), c.early, c.then)
				}
				if text, err := io.ReadAll(resp.Body); string(text) != c.first+c.and || err != nil {
					t.Errorf("the body has become %q, %v", text, err)
				}
				if err := resp.Body.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A refusal that only the body shows is not reported early.
func TestReadEarly_NotByTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resp := slowly("", time.Second, strings.NewReader(`{"errors":[{"extensions":{"code":"RATELIMITED"}}]}`))
		resp.StatusCode = 400
		if s := profile.Linear.ReadEarly(resp, time.Time{}, func(profile.Signal) { t.Error("reported early") }); !s.Throttled {
			t.Errorf("%+v", s)
		}
		_ = resp.Body.Close()
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
				if string(got) != first+second || name == "an error" != errors.Is(err, errCut) {
					t.Errorf("%s, %d: then %d bytes, %v", name, length, len(got), err)
				}
				_ = resp.Body.Close()
			})
		}
	}
}

// Close ends the goroutine that reads a body that stalls.
func TestBody_CloseEndsAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble ends only when all goroutines have ended
		resp := slowly("x", 24*time.Hour, strings.NewReader(""))
		_ = profile.GitHub.Read(resp, now)
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		_, _ = resp.Body.Read(make([]byte, 1))
		if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || err != io.ErrClosedPipe {
			t.Errorf("read %d, %v", n, err)
		}
	})
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
				if v := recover(); v != "bang" {
					t.Errorf("%s: panicked with %v", name, v)
				}
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
	resp, err := api.Client().Get(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = profile.GitHub.Read(resp, now)
	done := make(chan error, 1)
	go func() { done <- resp.Body.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Close still hangs after a minute")
	}
}
