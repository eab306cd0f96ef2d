package profile_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// bubble runs a scenario in fake time. Its name says what holds.
func bubble(t *testing.T, name string, scenario func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, scenario) })
}

// must returns v. An error, which no test expects, ends the tests with a panic that says it.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// fatalIf reports a fault, and ends the test.
func fatalIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// equal reports the value that the words name if it is another than want.
func equal[T comparable](t testing.TB, got, want T, words string, args ...any) {
	if got != want {
		t.Helper()
		t.Errorf("%s: %v, want %v", fmt.Sprintf(words, args...), got, want)
	}
}

// lines are those of a header: a string or a list of strings.
type lines []string

func (l *lines) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]string)(l))
	}
	*l = make(lines, 1)
	return json.Unmarshal(b, &(*l)[0])
}

// fixture is a line of a file of recorded and made-up responses.
type fixture struct {
	Vendor, Case, Profile, Body, Date, Source, Evidence, Note string

	Status  int
	Headers map[string]lines
	Now     time.Time
	Expect  map[string]any
}

var fixtures = []string{"../../testdata/headers.jsonl", "../../testdata/headers_more.jsonl", "../../testdata/headers_world.jsonl"}

func readFixtures(t testing.TB, path string) (all []fixture) {
	t.Helper()
	f := must(os.Open(path))
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 4<<20)
	for n := 1; sc.Scan(); n++ {
		if len(bytes.TrimSpace(sc.Bytes())) == 0 {
			continue
		}
		var c fixture
		d := json.NewDecoder(bytes.NewReader(sc.Bytes()))
		d.DisallowUnknownFields()
		err := d.Decode(&c)
		fatalIf(t, err != nil, "%s:%d: %v", path, n, err)
		// The API's documentation, another text, a response that was seen, or one that was made.
		fatalIf(t, !slices.Contains([]string{"primary", "secondary", "wild", "synthetic"}, c.Evidence),
			"%s:%d: evidence %q is not primary, secondary, wild or synthetic", path, n, c.Evidence)
		c.Case = fmt.Sprintf("%d %s: %s", n, c.Vendor, c.Case)
		all = append(all, c)
	}
	err := sc.Err()
	fatalIf(t, err != nil || len(all) == 0, "%s: %d lines, %v", path, len(all), err)
	return all
}

func (c *fixture) response() *http.Response {
	resp := &http.Response{StatusCode: c.Status, Header: http.Header{}, Body: http.NoBody, ContentLength: -1}
	for name, values := range c.Headers {
		for _, v := range values {
			resp.Header.Add(name, v)
		}
	}
	if c.Date != "" {
		resp.Header.Set("Date", c.Date)
	}
	if c.Body != "" {
		resp.Body = io.NopCloser(strings.NewReader(c.Body))
		// The files leave out headers that say nothing about limits.
		if kind := "application/json"; resp.Header.Get("Content-Type") == "" {
			if strings.HasPrefix(c.Body, "<") {
				kind = "text/xml"
			}
			resp.Header.Set("Content-Type", kind)
		}
	}
	return resp
}

// policyOf returns a policy in the words of the files. The zero policy is that of a response
// without any.
func policyOf(p *profile.Policy) map[string]any {
	got := map[string]any{"policy": nil, "limit": nil, "remaining": nil, "reset_after_s": nil, "window_s": nil, "unit": nil, "kind": nil}
	if p == nil {
		return got
	}
	for key, n := range map[string]float64{"limit": p.Limit, "remaining": p.Remaining} {
		if n >= 0 {
			got[key] = n
		}
	}
	if p.Reset >= 0 {
		got["reset_after_s"] = p.Reset.Seconds()
	}
	if p.Window > 0 {
		got["window_s"] = p.Window.Seconds()
	}
	if p.Name != "" {
		got["policy"] = p.Name
	}
	if p.Unit != "" {
		got["unit"] = p.Unit
	}
	got["kind"] = [...]string{"window", "bucket", "at once", "per second"}[p.Kind]
	return got
}

// same compares within a millisecond, because the files' times are in milliseconds.
func same(want, got any) bool {
	w, ok1 := want.(float64)
	g, ok2 := got.(float64)
	if ok1 && ok2 {
		return math.Abs(w-g) <= max(0.001, 1e-12*w)
	}
	return want == got
}

// check compares all that a fixture expects. Keys that the fixture leaves out may have any
// value.
func (c *fixture) check(t *testing.T, s *profile.Signal) {
	t.Helper()
	got := policyOf(s.Binding())
	got["throttled"], got["cached"] = s.Throttled, s.Cached
	got["scope"] = s.Scope
	got["retry_after_s"] = nil
	if s.HasRetryAfter {
		got["retry_after_s"] = s.RetryAfter.Seconds()
	}
	// A wait of 0 is none.
	got["block_s"] = min(s.Wait, time.Hour).Seconds()
	got["policies_count"] = float64(len(s.Policies()))
	for key, want := range c.Expect {
		switch key {
		case "policies":
			c.checkSet(t, s, want.([]any))
			continue
		case "reason":
			if want != s.Detail && want != s.Reason.String() {
				t.Errorf("reason: %v %q, want %q", s.Reason, s.Detail, want)
			}
			continue
		case "block_s":
			if want == nil {
				want = 0.0
			}
		}
		value, known := got[key]
		if !known {
			t.Errorf("the file expects %q, which this test does not know", key)
		} else if !same(want, value) {
			t.Errorf("%s: %v, want %v", key, value, want)
		}
	}
	if t.Failed() {
		t.Logf("%+v", *s)
	}
}

// checkSet finds a different policy for each one that the fixture expects.
func (c *fixture) checkSet(t *testing.T, s *profile.Signal, want []any) {
	t.Helper()
	taken := map[int]bool{}
next:
	for _, w := range want {
	other:
		for i := range s.Policies() {
			if taken[i] {
				continue
			}
			got := policyOf(&s.Policies()[i])
			for key, v := range w.(map[string]any) {
				if value, known := got[key]; !known || !same(v, value) {
					continue other
				}
			}
			taken[i] = true
			continue next
		}
		t.Errorf("no policy is %v", w)
	}
}

// Every response of the files is read as the files expect. DRIPFEED_HEADERS names further
// files of the same form.
func TestRead_RecordedResponses(t *testing.T) {
	files := slices.Clone(fixtures)
	if more := os.Getenv("DRIPFEED_HEADERS"); more != "" {
		files = append(files, more)
	}
	for _, file := range files {
		for _, c := range readFixtures(t, file) {
			t.Run(c.Case, func(t *testing.T) {
				p, ok := profile.ByName(c.Profile)
				fatalIf(t, !ok, "there is no profile %q", c.Profile)
				resp := c.response()
				s := p.Read(resp, c.Now)
				c.check(t, &s)
				body, err := io.ReadAll(resp.Body)
				errorIf(t, err != nil || string(body) != c.Body, "the body is %q afterwards, %v", body, err)
			})
		}
	}
}
