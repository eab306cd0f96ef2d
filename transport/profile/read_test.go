package profile_test

import (
	"io"
	"maps"
	"math"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/transport/profile"
)

const (
	noon    = "Tue, 01 Sep 2026 12:00:00 GMT"
	forever = (1 << 31) * time.Second
)

// answer returns a response with headers in pairs of name and value.
func answer(status int, headers ...string) *http.Response {
	h := http.Header{"Date": {noon}}
	for i := 0; i < len(headers); i += 2 {
		h.Add(headers[i], headers[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}
}

// carrying returns a response with a body of JSON, whose length is unknown.
func carrying(status int, body io.ReadCloser, headers ...string) *http.Response {
	resp := answer(status, append([]string{"Content-Type", "application/json"}, headers...)...)
	resp.Body, resp.ContentLength = body, -1
	return resp
}

func withBody(resp *http.Response, kind, body string) *http.Response {
	resp.Header.Set("Content-Type", kind)
	resp.Body = io.NopCloser(strings.NewReader(body))
	resp.ContentLength = int64(len(body))
	return resp
}

// A response without limits has an empty Signal.
func TestRead_NothingToRead(t *testing.T) {
	for _, resp := range []*http.Response{nil, {}, {StatusCode: 200}, answer(200), answer(404), answer(503), answer(200, "Age", "7")} {
		s := profile.Generic.Read(resp, now)
		errorIf(t, s.Throttled || s.Cached || s.Wait != 0 || s.HasRetryAfter || len(s.Policies()) != 0 || !s.Date.IsZero(), "%+v: %+v", resp, s)
	}
	s := profile.Generic.Read(answer(200, "X-From-Cache", "1"), now)
	errorIf(t, !s.Cached, "out of a cache: %+v", s)
}

// Which time counts.
func TestRead_Clocks(t *testing.T) {
	t.Run("The Signal has the API's time and its skew", func(t *testing.T) {
		s := profile.Generic.Read(answer(429), now.Add(5*time.Minute))
		errorIf(t, !s.Date.Equal(now) || s.Skew != -5*time.Minute,
			"%v, %v ahead, want %v and -5m", s.Date, s.Skew, now)
		resp := answer(429)
		resp.Header.Del("Date")
		s = profile.Generic.Read(resp, now)
		errorIf(t, !s.Date.IsZero() || s.Skew != 0, "%v, %v ahead, want nothing without Date", s.Date, s.Skew)
	})
	bubble(t, "The zero time stands for the moment", func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
		at := time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
		s := profile.Generic.Read(&http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {at}}}, time.Time{})
		errorIf(t, s.Wait != time.Minute+time.Second, "a minute ahead: %v, want 1m1s", s.Wait)
	})
	bubble(t, "Simulated time begins in 2000, when a time since 1970 has a digit less", func(t *testing.T) {
		api := outboundtest.GitHub(outboundtest.FirstCallWindow(1, time.Hour))
		for _, refused := range []bool{false, true} {
			resp := must((&http.Client{Transport: api}).Get("http://api.test/user"))
			s := profile.GitHub.Read(resp, time.Now())
			resp.Body.Close()
			p := s.Binding()
			errorIf(t, s.Throttled != refused || p == nil || p.Reset != time.Hour || s.Wait != time.Hour+time.Second, "%+v", s)
		}
	})
}

// A profile finds a vendor's header in any spelling, and the header has only the meaning that
// the profile lists.
func TestFields_OfACustomProfile(t *testing.T) {
	p := &profile.Profile{Name: "mine", Fields: []profile.Field{
		{Header: "x-mine-left", Is: profile.IsRemaining, Policy: "mine", Unit: "points", Window: time.Hour},
		{Header: "X-MINE-MAX", Is: profile.IsLimit, Policy: "mine"},
		{Header: "x-ratelimit-reset", Is: profile.IsReset, Policy: "mine", In: time.Minute},
		{Header: "X-Mine-*-Used", Is: profile.IsUsedOfLimit},
		{Header: "X-Mine-Why", Is: profile.IsDetail},
		{Header: "X-Mine-Pause", Is: profile.IsRetryAfter, In: time.Millisecond},
	}}
	s := p.Read(answer(429, "X-Mine-Left", "3", "X-Mine-Max", "9", "X-RateLimit-Reset", "2", "X-Mine-Special-Used", "1/9", "X-Mine-Why", " too \x01 fast\xff ", "X-Mine-Pause", "250"), now)
	n := len(s.Policies())
	fatalIf(t, n != 2, "%d policies, want 2: %+v", n, s.Policies())
	b := s.Binding()
	errorIf(t, b.Name != "mine" || b.Unit != "points" || b.Limit != 9 || b.Remaining != 3 || b.Reset != 2*time.Minute || b.Window != time.Hour, "%+v", b)
	for _, q := range s.Policies() {
		errorIf(t, q.Name != "mine" && (q.Name != "special" || q.Remaining != 8 || q.Limit != 9), "%+v", q)
	}
	errorIf(t, s.Detail != "too  fast" || s.Wait != 250*time.Millisecond, "%q, %v", s.Detail, s.Wait)
}

// Refusals, Reason and Penalty hold for refusals because of a limit only.
func TestRefusals_OfACustomProfile(t *testing.T) {
	p := &profile.Profile{Name: "mine", Refusals: []int{420}, Reason: profile.Concurrency, Penalty: time.Minute}
	for status, want := range map[int]profile.Reason{420: profile.Concurrency, 429: profile.Concurrency, 529: profile.Overload, 400: profile.Unknown} {
		s := p.Read(answer(status), now)
		errorIf(t, s.Throttled != (status != 400) || s.Reason != want || s.Wait != 0,
			"%d: %v %v %v, want %v and no penalty", status, s.Throttled, s.Reason, s.Wait, want)
	}
	for _, status := range []int{503, 529} {
		if s := p.Read(answer(status, "Retry-After", "5"), now); !s.Throttled || s.Reason == profile.Concurrency {
			t.Errorf("%d: %v %v, though it is not about our calls", status, s.Throttled, s.Reason)
		}
	}
	p.Reason = profile.Unknown
	s := p.Read(answer(503, "Retry-After", "0"), now)
	errorIf(t, s.Wait != 0, "the penalty of a 503 is %v", s.Wait)
	if s := p.Read(answer(429), now); s.Wait != time.Minute || s.RetryAfter != time.Minute || !s.HasRetryAfter {
		t.Errorf("the penalty is %v", s.Wait)
	}
}

// A 503 or 529 is no refusal because of a limit, whatever the headers say: the API may have carried out the call.
func TestRefusals_OverloadIsNoLimit(t *testing.T) {
	for _, name := range names {
		for _, status := range []int{503, 529} {
			p, _ := profile.ByName(name)
			s := p.Read(answer(status, "Retry-After", "5",
				"X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60", "X-RateLimit-Resource", "core", "X-RateLimit-Type", "Daily-limit",
				"X-Rate-Limit-Limit", "0", "X-Rate-Limit-Remaining", "0", "X-Rate-Limit-Reset", "60", "X-Rate-Limit-Problem", "concurrent", "X-Rate-Limit-Type", "application",
				"X-HubSpot-RateLimit-Daily", "9", "X-HubSpot-RateLimit-Daily-Remaining", "0", "Twilio-Concurrent-Requests", "110", "RateLimit-Reason", "jira-quota-global-based",
				"Stripe-Rate-Limited-Reason", "global-concurrency", "X-Shopify-Shop-Api-Call-Limit", "40/40", "Sforce-Limit-Info", "api-usage=9/9"), now)
			errorIf(t, !s.Throttled || s.Reason != profile.Unknown && s.Reason != profile.Overload,
				"%s: %d is %v, throttled %v", name, status, s.Reason, s.Throttled)
		}
	}
}

// Judge is called for refusals, for responses that Bodies lists, and for headers that are IsCustom.
func TestJudge_CalledWhereListed(t *testing.T) {
	asked := 0
	p := &profile.Profile{
		Name:   "mine",
		Fields: []profile.Field{{Header: "X-Mine", Is: profile.IsCustom}, {Header: "X-Left", Is: profile.IsRemaining}, {Header: "X-Own-*", Is: profile.IsCustom}},
		Bodies: []profile.Body{{Status: 403}, {Status: 200, Header: "X-Kind", Value: "graphql"}},
		Judge:  func(*profile.Response, *profile.Signal) { asked++ },
	}
	for _, c := range []struct {
		resp *http.Response
		want int
	}{
		{answer(200), 0}, {answer(200, "X-Left", "3"), 0}, {answer(404), 0}, {answer(200, "X-Kind", "rest"), 0},
		{answer(200, "X-Kind", "GraphQL"), 1}, {answer(403), 1}, {answer(429), 1}, {answer(200, "X-Mine", ""), 1}, {answer(200, "X-Own-Goal", "1"), 1},
		{answer(429, "Age", "1"), 0}, {answer(403, "X-From-Cache", "1"), 0},
	} {
		asked = 0
		p.Read(c.resp, now)
		errorIf(t, asked != c.want,
			"%d %v: asked %d times, want %d", c.resp.StatusCode, c.resp.Header, asked, c.want)
	}
}

// Whatever Judge does, the Signal keeps what its fields promise.
func TestJudge_CannotBreakThePromises(t *testing.T) {
	p := &profile.Profile{Name: "mine", Judge: func(_ *profile.Response, s *profile.Signal) {
		s.Reason = 99
		s.Detail = strings.Repeat("d", 1000)
		s.Scope = "a\nb\xff"
		s.RetryAfter, s.HasRetryAfter = -time.Hour, true
		s.Wait = math.MaxInt64
		for i := range s.Policies() {
			q := &s.Policies()[i]
			q.Remaining, q.Limit, q.Reset, q.Window = math.NaN(), math.Inf(1), -7, -7
		}
		s.Add(profile.Policy{Name: "literal", Remaining: -5, Limit: 7, Reset: math.MaxInt64, Window: math.MaxInt64})
		s.Add(profile.NewPolicy("nothing"))
		for range 100 {
			s.Add(profile.Policy{Remaining: 9, Limit: 3, Reset: 1})
		}
	}}
	s := p.Read(answer(429, "X-RateLimit-Limit", "5", "X-RateLimit-Remaining", "5"), now)
	promised(t, &s)
	errorIf(t, len(s.Policies()) != 31 || s.Reason != profile.Unknown || s.Scope != "ab" || s.RetryAfter != 0,
		"%+v", s)
	errorIf(t, s.Wait != forever, "Wait is %v, want %v", s.Wait, forever)
}

// promised checks what the documentation says of every Signal.
func promised(t *testing.T, s *profile.Signal) {
	t.Helper()
	name := func(v string) bool {
		return len(v) <= 128 && utf8.ValidString(v) && !strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c == 0x7f })
	}
	amount := func(f float64) bool { return f == profile.None || f >= 0 && f <= 1e20 }
	switch {
	case s.Wait < 0, s.Wait > forever, s.RetryAfter < 0, s.RetryAfter > forever, !s.HasRetryAfter && s.RetryAfter != 0,
		!s.Throttled && s.Reason != profile.Unknown, s.Reason > profile.Lock, !name(s.Detail), !name(s.Scope),
		len(s.Policies()) > 32, s.Skew > forever, s.Skew < -forever,
		s.Cached && (s.Throttled || s.Wait != 0 || s.HasRetryAfter || len(s.Policies()) > 0):
		t.Errorf("%+v", s)
	}
	for _, p := range s.Policies() {
		switch {
		case !name(p.Name), !name(p.Unit), !amount(p.Limit), !amount(p.Remaining), p.Limit >= 0 && p.Remaining > p.Limit,
			p.Reset < 0 && p.Reset != profile.None, p.Reset > 40*24*time.Hour, p.Window < 0, p.Window > forever, p.Wait() < 0,
			p.Limit < 0 && p.Remaining < 0 && p.Reset < 0:
			t.Errorf("%+v", p)
		}
	}
	errorIf(t, (s.Binding() == nil) != (len(s.Policies()) == 0), "%v binds of %d", s.Binding(), len(s.Policies()))
}

// ByName finds profiles by their names, in any spelling.
func TestByName_FindsAllSpellings(t *testing.T) {
	for _, name := range []string{
		"generic", "GitHub", "github_graphql", "GitHub REST", "amazon-sp-api", "ms-graph", "monday.com", "jira-cloud", "turn.io",
		"Oracle AG", "X (Twitter)", "twitter/x", "Meta Graph", "AWS APIs", "Docker Hub", "express-rate-limit", "agent.ai", "openai/azure",
	} {
		p, ok := profile.ByName(name)
		errorIf(t, !ok || p == nil || p.Name == "", "%q: %v %v", name, p, ok)
	}
	for _, name := range []string{"", "-", "unlisted", "git"} {
		p, ok := profile.ByName(name)
		errorIf(t, ok || p != nil, "%q: %v", name, p)
	}
	p, _ := profile.ByName("github")
	errorIf(t, p != profile.GitHub, "github is %q", p.Name)
}

// A flood of headers costs a bounded number of allocations, says nothing that is out of
// bounds, and is read the same each time.
func TestRead_FloodsAreBounded(t *testing.T) {
	all := floods()
	for _, what := range slices.Sorted(maps.Keys(all)) {
		resp := all[what]
		for _, name := range []string{"generic", "jira", "meta", "azure-arm", "riot", "openai"} {
			p, _ := profile.ByName(name)
			s := p.Read(resp, now)
			promised(t, &s)
			errorIf(t, !s.Throttled, "%s as %s: not refused", what, name)
			n := testing.AllocsPerRun(1, func() { sink = p.Read(resp, now) })
			errorIf(t, n > 250, "%s as %s: %v allocations", what, name, n)
			if again := p.Read(resp, now); what != "wild" && (again.Wait != s.Wait || len(again.Policies()) != len(s.Policies())) {
				t.Errorf("%s as %s: %v and then %v", what, name, s.Wait, again.Wait)
			}
		}
	}
}

// A usual response costs no allocation.
func TestRead_UsualResponsesDoNotAllocate(t *testing.T) {
	for name, resp := range map[string]*http.Response{
		"nothing":     usual(200),
		"refused":     usual(429),
		"seconds":     usual(429, "Retry-After", "30"),
		"date":        usual(429, "Retry-After", "Tue, 01 Sep 2026 12:02:00 GMT"),
		"three":       usual(200, "X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4999", "X-RateLimit-Reset", "1788265800"),
		"structured":  usual(200, "RateLimit", `"default";r=50;t=30`, "RateLimit-Policy", `"default";q=100;w=60`),
		"two":         usual(200, "RateLimit", `"a";r=50;t=30, "b";r=9`, "RateLimit-Policy", `"a";q=100;w=60, "b";q=10;w=1`),
		"dictionary":  usual(200, "RateLimit", `limit=10, remaining=5, reset=3`, "RateLimit-Policy", `10;w=60`),
		"of a vendor": usual(200, "X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4999", "X-RateLimit-Reset", "1788265800", "X-RateLimit-Resource", "core"),
	} {
		for _, p := range []*profile.Profile{nil, profile.Generic, profile.GitHub, profile.OpenAI, profile.Jira} {
			if p != nil && p.Judge != nil && resp.StatusCode == 429 {
				continue // its function allocates
			}
			n := testing.AllocsPerRun(100, func() { sink = p.Read(resp, now) })
			errorIf(t, n > 0, "%s: %v allocations", name, n)
		}
	}
}

// Read takes a short way for a plain success by Generic, and reads as much as a copy of Generic does. A nil profile is
// Generic.
func TestRead_GenericReadsAsMuchAsACopy(t *testing.T) {
	var none *profile.Profile
	long := *profile.Generic
	long.Bodies = append([]profile.Body{}, long.Bodies...)
	for _, resp := range []*http.Response{
		answer(200), usual(200), answer(200, "Age", "5"), answer(200, "X-From-Cache", "1"), answer(200, "X-Mashery-Error-Code", "ERR_403_OVER_QPS"),
		answer(200, "X-Bapi-Limit-Status", "0"), answer(200, "Retry-After", "5"), answer(200, "Content-Type", "application/problem+json"), answer(429, "Retry-After", "10"),
	} {
		short, without, want := profile.Generic.Read(resp, now), none.Read(resp, now), long.Read(resp, now)
		errorIf(t, !reflect.DeepEqual(short, want) || !reflect.DeepEqual(without, want), "%v: read %+v, and %+v, want %+v", resp.Header, short, without, want)
	}
	for _, k := range long.Bodies {
		errorIf(t, k.Status == 200 && k.Header != "X-Bapi-Limit-Status",
			"Generic reads the body of a plain success: %+v", k)
	}
}

var numbers = regexp.MustCompile(`([:\[]\s*)(-?[0-9][0-9.]*)(\s*[,}\]])`)

// What proxies, clocks and other encoders do to a response never makes it say more: a refusal that
// was none, or a longer wait than the response has, or than it has without the part that changed.
func TestRead_VariationsReadNoMore(t *testing.T) {
	for _, file := range fixtures {
		for _, c := range readFixtures(t, file) {
			p, _ := profile.ByName(c.Profile)
			read := func(now time.Time, headers func(http.Header), body func(string) string) profile.Signal {
				changed := c
				if body != nil {
					changed.Body = body(c.Body)
				}
				resp := changed.response()
				kind := resp.Header["Content-Type"]
				if c.Body != "" {
					kind = c.response().Header["Content-Type"]
				}
				if headers != nil {
					headers(resp.Header)
				}
				if kind != nil {
					resp.Header["Content-Type"] = kind
				}
				return p.Read(resp, now)
			}
			whole := read(c.Now, nil, nil)
			check := func(name string, got profile.Signal, least ...profile.Signal) {
				throttled, wait := whole.Throttled, whole.Wait
				for _, s := range least {
					throttled, wait = throttled || s.Throttled, max(wait, s.Wait)
				}
				errorIf(t, got.Throttled && !throttled || got.Wait > wait,
					"%s: %s: throttled %v for %v, want at most %v for %v", c.Case, name, got.Throttled, got.Wait, throttled, wait)
			}
			each := func(change func(v []string) []string) func(http.Header) {
				return func(h http.Header) {
					for name, v := range h {
						if name != "Date" {
							h[name] = change(v)
						}
					}
				}
			}
			one := func(change func(v string) string) func(http.Header) {
				return each(func(v []string) (all []string) {
					for _, line := range v {
						all = append(all, change(line))
					}
					return all
				})
			}
			if at, err := http.ParseTime(c.Date); err == nil {
				for _, skew := range []time.Duration{-25 * time.Hour, -time.Hour, -time.Second, time.Second, time.Hour, 25 * time.Hour} {
					check("a clock that is wrong by "+skew.String(), read(c.Now.Add(skew), nil, nil))
				}
				check("without Date", read(at, func(h http.Header) { h.Del("Date") }, nil))
			}
			check("doubled", read(c.Now, each(func(v []string) []string { return append(v[:len(v):len(v)], v...) }), nil))
			bare := read(c.Now, func(h http.Header) {
				for name := range h {
					if name != "Date" {
						delete(h, name)
					}
				}
			}, nil)
			check("joined", read(c.Now, one(func(v string) string { return v + ", " + v }), nil), bare)
			check("empty", read(c.Now, one(func(string) string { return "" }), nil), bare)
			check("quoted", read(c.Now, one(strconv.Quote), nil), bare)
			if c.Body == "" {
				continue
			}
			without := read(c.Now, nil, func(string) string { return "" })
			check("a body that comes twice", read(c.Now, nil, func(b string) string { return b + b }), without)
			check("numbers as strings", read(c.Now, nil, func(b string) string { return numbers.ReplaceAllString(b, `$1"$2"$3`) }), without)
			for cut := 1; cut < 8; cut++ {
				check("a body that is cut off", read(c.Now, nil, func(b string) string { return b[:len(b)*cut/8] }), without)
			}
		}
	}
}
