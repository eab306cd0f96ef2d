package profile_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// names are those of all profiles that FuzzRead reads with.
var names = []string{
	"generic", "github", "linear", "slack", "notion", "airtable", "monday", "zoom", "basecamp", "jira", "confluence-dc", "openai", "anthropic",
	"aws", "azure-arm", "graph", "google", "okta", "kong", "rapidapi", "akamai", "oracle-access-governance", "twilio", "shopify-rest", "shopify-graphql",
	"stripe", "spapi", "bigcommerce", "tiendanube", "prisjakt", "etsy", "hubspot", "salesforce", "pipedrive", "zendesk", "mailchimp", "xero",
	"quickbooks", "discord", "twitter", "reddit", "meta", "strava", "riot", "dropbox", "binance",
}

// parse makes a response of lines "Name: value".
func parse(status uint16, head, body string) *http.Response {
	h := http.Header{}
	for line := range strings.Lines(head) {
		if name, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":"); ok {
			h.Add(strings.TrimSpace(name), strings.TrimPrefix(v, " "))
		}
	}
	h.Set("Content-Type", "application/json")
	return &http.Response{StatusCode: int(status), Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: -1}
}

// No header makes a profile panic, or report an impossible number.
func FuzzRead(f *testing.F) {
	index := map[string]int{}
	for i, name := range names {
		index[name] = i
	}
	for _, file := range fixtures {
		for _, c := range readFixtures(f, file) {
			var head strings.Builder
			for name, lines := range c.Headers {
				for _, v := range lines {
					head.WriteString(name + ": " + v + "\n")
				}
			}
			head.WriteString("Date: " + c.Date + "\n")
			f.Add(uint8(index[c.Profile]), uint16(c.Status), head.String(), c.Body, c.Now.Unix())
		}
	}
	f.Fuzz(func(t *testing.T, n uint8, status uint16, head, body string, at int64) {
		p, ok := profile.ByName(names[int(n)%len(names)])
		fatalIf(t, !ok, "%v", names[int(n)%len(names)])
		now := time.Unix(at, 0)
		resp := parse(status, head, body)
		s := p.Read(resp, now)
		promised(t, &s)
		got, err := io.ReadAll(resp.Body)
		errorIf(t, err != nil || string(got) != body, "the body is %q afterwards, %v", got, err)
		// The result does not depend on the order of Go's maps, unless there is too much to
		// read all.
		if again := p.Read(parse(status, head, body), now); len(head) < 1000 {
			a, b := s.Binding(), again.Binding()
			if s.Wait != again.Wait || s.Throttled != again.Throttled || s.Reason != again.Reason || len(s.Policies()) != len(again.Policies()) ||
				a != nil && (a.Name != b.Name || a.Limit != b.Limit || a.Remaining != b.Remaining || a.Reset != b.Reset) {
				t.Errorf("%+v and then %+v", s, again)
			}
		}
		// One more line never shortens the wait.
		if s.HasRetryAfter && !s.Cached && p == profile.Generic && status == 429 {
			more := parse(status, "Retry-After: 7\n"+head, body)
			if longer := p.Read(more, now); len(head) < 1000 && len(more.Header["Retry-After"]) <= 16 && longer.RetryAfter < min(s.RetryAfter, 6*time.Second) {
				t.Errorf("%v became %v", s.RetryAfter, longer.RetryAfter)
			}
		}
	})
}

// In a body that encoding/json can read, find returns what encoding/json finds.
func FuzzJSON(f *testing.F) {
	for _, body := range []string{`{"a":{"b":"x"}}`, `[{"a":[{"c":1},{"b":true}]}]`, `{"a":{"b":"\u00fc\"\\"}}`, `{"x":"}","a":{"b":-1.5e3}}`, `{"a":[1,{"b":null},{"b":2}]}`, `{"a":`} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		got := ""
		p := &profile.Profile{Bodies: []profile.Body{{Status: 400}}, Judge: func(r *profile.Response, _ *profile.Signal) { got = r.JSON("a/b") }}
		p.Read(withBody(answer(400), "application/json", body), now)
		d := json.NewDecoder(bytes.NewReader([]byte(body)))
		d.UseNumber()
		var v struct{ A struct{ B json.RawMessage } }
		// encoding/json reads keys in any case, and the last one counts. So only plain texts
		// can be compared.
		if d.Decode(&v) != nil || strings.ContainsAny(body, "\\AB[") || strings.Count(body, `"a"`) != 1 || strings.Count(body, `"b"`) != 1 || !json.Valid([]byte(body)) || len(body) > 1000 {
			return
		}
		want := string(v.A.B)
		if strings.HasPrefix(want, "{") || want == "null" {
			want = ""
		}
		want = strings.Trim(want, `"`)
		errorIf(t, got != want, "%q: %q, want %q", body, got, want)
	})
}
