#!/usr/bin/env bash
# Guess: the Go client of Google Drive sends an upload again after a 429 or never, and waits for its Retry-After.
# Seen: the size decides. An upload in one request makes one attempt. One in chunks makes many in 32 s a chunk, and
# ignores a Retry-After of 60 s.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get -t google.golang.org/api@v0.315.0 2>/dev/null
cat >finding_test.go <<'END'
package finding

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/drive/v3"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
)

// answer gives each request the same response, in no time.
type answer struct {
	n      int
	status int
	header http.Header
	body   string
}

func (a *answer) RoundTrip(req *http.Request) (*http.Response, error) {
	a.n++
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: a.status, Header: a.header, Request: req, ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader(a.body))}, nil
}

// session begins a resumable upload, and then refuses.
type session struct{ answer }

func (s *session) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
	if s.n > 0 || req.URL.Query().Get("uploadType") != "resumable" {
		return s.answer.RoundTrip(req)
	}
	begun := answer{status: 200, header: http.Header{"Location": {"http://api.example.com/session"}}}
	s.n++
	return begun.RoundTrip(req)
}

func Test(t *testing.T) {
	for _, c := range []struct{ size, least, most int }{{100 << 10, 1, 1}, {1 << 20, 5, 40}} {
		synctest.Test(t, func(t *testing.T) {
			api := &session{answer{status: 429, header: http.Header{"Retry-After": {"60"}}, body: `{"error": {"code": 429}}`}}
			service, err := drive.NewService(t.Context(), option.WithHTTPClient(&http.Client{Transport: api}), option.WithEndpoint("http://api.example.com"))
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			_, err = service.Files.Create(&drive.File{Name: "x"}).
				Media(bytes.NewReader(make([]byte, c.size)), googleapi.ChunkSize(256<<10)).Context(t.Context()).Do()
			took := time.Since(begin)
			t.Logf("%d KiB in chunks of 256 KiB: %d requests in %v: %v", c.size>>10, api.n, took, err)
			if err == nil || api.n < c.least || api.n > c.most || took > 40*time.Second {
				t.Errorf("want %d to %d within 40s", c.least, c.most)
			}
		})
	}
}
END
timeout 120 go mod tidy 2>/dev/null
timeout 150 go test -v -count=1 . | grep -v '^=== '
