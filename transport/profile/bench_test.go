package profile_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// usual returns a response as APIs send it, with more headers in pairs of name and value.
func usual(status int, more ...string) *http.Response {
	h := http.Header{
		"Date":                      {"Tue, 01 Sep 2026 12:00:00 GMT"},
		"Content-Type":              {"application/json; charset=utf-8"},
		"Content-Length":            {"1234"},
		"Server":                    {"nginx"},
		"Cache-Control":             {"private, max-age=60, s-maxage=60"},
		"Vary":                      {"Accept, Authorization"},
		"Etag":                      {`W/"a1b2c3"`},
		"X-Request-Id":              {"0123:4567:89AB"},
		"Strict-Transport-Security": {"max-age=31536000"},
		"X-Content-Type-Options":    {"nosniff"},
	}
	for i := 0; i < len(more); i += 2 {
		h.Add(more[i], more[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}
}

var (
	now  = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	sink profile.Signal
)

// bench reads a response, each time with this body if that is not empty.
func bench(b *testing.B, name string, resp *http.Response, body string) {
	b.Helper()
	p, ok := profile.ByName(name)
	fatalIf(b, !ok, "%v", name)
	b.ReportAllocs()
	throttled := 0
	for b.Loop() { // as the transport does, which keeps no Signal either
		if body != "" {
			resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		}
		if s := p.Read(resp, now); s.Throttled {
			throttled++
		}
	}
	errorIf(b, throttled != 0 && throttled != b.N, "one response is read in two ways")
}

// BenchmarkFloor is the least that reading a response can cost: ranging over its headers.
func BenchmarkFloor(b *testing.B) {
	resp := usual(200)
	n := 0
	for b.Loop() {
		for name := range resp.Header {
			n += len(name)
		}
	}
	_ = n
}

// BenchmarkRead reads responses as APIs send them.
func BenchmarkRead(b *testing.B) {
	for _, c := range []struct {
		name, profile string
		resp          *http.Response
	}{
		{"nothing", "generic", usual(200)},
		{"few headers", "generic", answer(200)},
		{"nothing of a vendor", "github", usual(200)},
		{"limit headers", "generic", usual(200, "X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4999", "X-RateLimit-Reset", "1788265800")},
		{"structured", "generic", usual(200, "RateLimit", `"default";r=50;t=30`, "RateLimit-Policy", `"default";q=100;w=60`)},
		{"Retry-After", "generic", usual(429, "Retry-After", "30")},
		{"Retry-After, a date", "generic", usual(429, "Retry-After", "Tue, 01 Sep 2026 12:02:00 GMT")},
		{"GitHub", "github", usual(200, "X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4999", "X-RateLimit-Used", "1", "X-RateLimit-Reset", "1788265800", "X-RateLimit-Resource", "core")},
		{"OpenAI", "openai", usual(200,
			"X-RateLimit-Limit-Requests", "5000", "X-RateLimit-Remaining-Requests", "4999", "X-RateLimit-Reset-Requests", "12ms",
			"X-RateLimit-Limit-Tokens", "160000", "X-RateLimit-Remaining-Tokens", "159976", "X-RateLimit-Reset-Tokens", "6m0s")},
	} {
		b.Run(c.name, func(b *testing.B) { bench(b, c.profile, c.resp, "") })
	}
}

// floods are responses that are meant to be slow to read.
func floods() map[string]*http.Response {
	const n = 10_000
	names := usual(429)
	for i := range n {
		names.Header[fmt.Sprintf("X-Ratelimit-%d-Remaining", i)] = []string{"1"}
	}
	few := usual(429)
	for i := range 110 {
		for _, what := range []string{"Limit", "Remaining", "Reset"} {
			few.Header[fmt.Sprintf("X-Ratelimit-%s-%d", what, i)] = []string{"Tue, 01 Sep 2026 12:02:00 GMX"}
		}
		if len(few.Header) > 120 {
			break
		}
	}
	all := map[string]*http.Response{"names": names, "wild": few}
	for what, value := range map[string]string{
		"long":       strings.Repeat("9", 1<<20),
		"dates":      "Tue, 31 Feb 2026 12:02:00 GMT",
		"iso":        "2026-02-31T12:02:00.123456789+01:00",
		"javascript": "Tue Feb 31 2021 09:02:42 GMT+0100 (Central European Standard Time)",
		"items":      strings.Repeat(`"a";r=1;t=1,`, 80) + `"a"`,
		"names":      strings.Repeat(`a,`, 500) + `a`,
		"policies":   strings.Repeat(`"a";q=1;w=1;pk=:YWJj:,`, 40) + `"a"`,
		"quotas":     strings.Repeat("1;w=1,", 160) + "1",
		"parameters": `"a"` + strings.Repeat(";r=1", 250),
		"inner":      "(" + strings.Repeat(`"" `, 300) + ")",
		"escapes":    `"` + strings.Repeat(`\"`, 400) + `";r=1`,
		"display":    `a;x=%"` + strings.Repeat("%c3%bc", 150) + `"`,
		"numbers":    strings.Repeat("1,", 500) + "1",
		"durations":  strings.Repeat("1h", 500),
		"fractions":  "1." + strings.Repeat("1", 1000),
		"json":       strings.Repeat(`{"a":[`, 160),
		"utf":        strings.Repeat("\xff", 1000),
		"usage":      strings.Repeat("1:1,", 250),
	} {
		resp := usual(429)
		for _, name := range []string{
			"Retry-After", "Retry-After-Ms", "X-Ms-Retry-After-Ms", "X-Amz-Retry-After", "X-Ratelimit-Retry-After",
			"Ratelimit", "Ratelimit-Policy", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", "Ratelimit-Resettime", "Ratelimit-Name",
			"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "X-Ratelimit-Reset-After", "X-Rate-Limit-Limit",
			"X-Rate-Limit-Remaining", "X-Rate-Limit-Reset", "Date", "Beta-Ratelimit", "Beta-Ratelimit-Policy", "X-Ratelimit",
			"X-App-Usage", "X-Ad-Account-Usage", "X-Business-Use-Case-Usage", "X-Ms-Ratelimit-Remaining-Resource", "Sforce-Limit-Info",
			"X-App-Rate-Limit", "X-App-Rate-Limit-Count", "X-Method-Rate-Limit", "X-Method-Rate-Limit-Count", "X-Ratelimit-Usage",
		} {
			for range n / 33 {
				resp.Header[name] = append(resp.Header[name], value)
			}
		}
		all[what] = resp
	}
	return all
}

// BenchmarkFlood reads headers that are meant to be slow, BenchmarkBodies bodies, and BenchmarkUnpack compressed ones.
func BenchmarkFlood(b *testing.B) {
	for what, resp := range floods() {
		for _, name := range []string{"generic", "jira", "meta", "azure-arm", "riot", "openai"} {
			b.Run(what+"/"+name, func(b *testing.B) { bench(b, name, resp, "") })
		}
	}
}

func BenchmarkBodies(b *testing.B) {
	for what, body := range bodies(64 << 10) {
		for _, name := range []string{"google", "github", "shopify-graphql", "monday"} {
			p, _ := profile.ByName(name)
			b.Run(what+"/"+name, func(b *testing.B) { bench(b, name, usual(p.Bodies[0].Status), body) })
		}
	}
}

func BenchmarkUnpack(b *testing.B) {
	for what, body := range slowZips(b) {
		b.Run(what, func(b *testing.B) { bench(b, "github", usual(403, "Content-Encoding", "gzip"), body) })
	}
}

// bodies are JSON texts of at least n bytes.
func bodies(n int) map[string]string {
	fill := func(begin, part, end string) string { return begin + strings.Repeat(part, n/len(part)) + end }
	return map[string]string{
		"things":    fill(`{"data":[`, `{"id":"gid://shop/Product/123456789","title":"A thing","n":12},`, `{}],"extensions":{"cost":{"requestedQueryCost":10}}}`),
		"numbers":   fill(`{"error":[`, `0,`, `0]}`),
		"reasons":   fill(`{"error":{"errors":[`, `{"reason":"rateLimit"},`, `{}]}}`),
		"messages":  fill(`{"message":[`, `"a rate",`, `""]}`),
		"codes":     fill(`{"errors":[`, `{"extensions":{"code":"x"}},`, `{}]}`),
		"members":   fill(`{`, `"a":0,`, `"b":0}`),
		"deep":      fill(``, `{"a":[`, ``),
		"objects":   fill(`[`, `{},`, `{}]`),
		"escapes":   fill(`{"message":"`, `\"`, `"}`),
		"escapes 2": fill(`{"errors":[`, `{"type":"\u0041"},`, `{}]}`),
		"brackets":  fill(``, `[`, ``),
		"blanks":    fill(`{"a":`, "\n", `0}`),
	}
}

// zipped returns a compressed text.
func zipped(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, text)
	fatalIf(t, err != nil, "%v", err)
	err = w.Close()
	fatalIf(t, err != nil, "%v", err)
	return b.String()
}

// slowZips are bodies that are meant to be slow to unpack.
func slowZips(t testing.TB) map[string]string {
	head := "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
	var tables bytes.Buffer // blocks with codes of their own
	w := must(flate.NewWriter(&tables, flate.HuffmanOnly))
	for tables.Len() < 8<<10 {
		_, _ = io.WriteString(w, strings.Repeat("\x00", 60)+"abcdefghijklmnop")
		_ = w.Flush()
	}
	return map[string]string{
		"empty members": strings.Repeat(zipped(t, ""), 500),
		"empty blocks":  head + strings.Repeat("\x00\x00\x00\xff\xff", 2000),
		"tables":        head + tables.String(),
		"one byte":      zipped(t, strings.Repeat("x", 1<<20)),
	}
}

// BenchmarkBody looks for a value at the end of the longest part of a body that profiles look at.
// The profile has no Rules, which would look through the body, too.
func BenchmarkBody(b *testing.B) {
	text := `{"data":[` + strings.Repeat(`{"id":"gid://shop/Product/123456789","title":"A thing","n":12},`, 120) + `{}],"extensions":{"cost":{"requestedQueryCost":10}}}`
	p := &profile.Profile{Bodies: []profile.Body{{Status: 200}}, Judge: func(r *profile.Response, _ *profile.Signal) {
		if r.JSON("extensions/cost/requestedQueryCost") == "" {
			panic("not found")
		}
	}}
	resp := usual(200)
	b.ReportAllocs()
	for b.Loop() {
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
		sink = p.Read(resp, now)
	}
}
