package profile_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// zipped returns a compressed text.
func zipped(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A client that asks for gzip itself gets it as it is: net/http unpacks nothing.
func TestABodyThatIsGzippedIsLookedAtAndReadsAsBefore(t *testing.T) {
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
		resp := answer(429, "Content-Type", "application/json", "Content-Encoding", c.encoding)
		resp.Body, resp.ContentLength, resp.Uncompressed = io.NopCloser(strings.NewReader(c.body)), -1, c.unpacked
		looker(&seen).Read(resp, now)
		if string(seen) != c.saw {
			t.Errorf("%s: saw %.60q, want %.60q", name, seen, c.saw)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != c.body || err != nil {
			t.Errorf("%s: the body has become %.60q, %v", name, got, err)
		}
	}
}

func TestGitHubsSecondaryLimitIsKnownInGzip(t *testing.T) {
	resp := answer(403, "Content-Type", "application/json; charset=utf-8", "Content-Encoding", "gzip")
	resp.Body = io.NopCloser(strings.NewReader(zipped(t, `{"message":"You have exceeded a secondary rate limit."}`)))
	resp.ContentLength = -1
	if s := profile.GitHub.Read(resp, now); !s.Throttled || s.Scope != "secondary" {
		t.Errorf("%+v", s)
	}
}

// slowZips are bodies that are meant to be slow to unpack.
func slowZips(t testing.TB) map[string]string {
	head := "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
	var tables bytes.Buffer // blocks with codes of their own
	w, err := flate.NewWriter(&tables, flate.HuffmanOnly)
	if err != nil {
		t.Fatal(err)
	}
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

func BenchmarkUnpack(b *testing.B) {
	for what, body := range slowZips(b) {
		b.Run(what, func(b *testing.B) {
			resp := usual(403)
			resp.Header.Set("Content-Encoding", "gzip")
			b.ReportAllocs()
			for b.Loop() {
				resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
				sink = profile.GitHub.Read(resp, now)
			}
		})
	}
}
