#!/usr/bin/env bash
# Guess: RetryWaitMax of go-retryablehttp, 30 s, is the longest that its client waits between two attempts.
# Seen: a Retry-After of an hour is waited for, because RetryWaitMax bounds only the backoff without a Retry-After.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get -t github.com/hashicorp/go-retryablehttp@v0.7.8 2>/dev/null
cat >finding_test.go <<'END'
package finding

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
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

func Test(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &answer{status: 429, header: http.Header{"Retry-After": {"3600"}}}
		client := retryablehttp.NewClient()
		client.Logger, client.HTTPClient = nil, &http.Client{Transport: api}
		client.RetryMax, client.RetryWaitMax = 1, 30*time.Second
		begin := time.Now()
		_, err := client.Get("http://api.example.com/")
		t.Logf("RetryWaitMax 30s, Retry-After: 3600: %d attempts in %v: %v", api.n, time.Since(begin), err)
		if api.n != 2 || time.Since(begin) != time.Hour {
			t.Error("want 2 in an hour")
		}
	})
}
END
timeout 120 go mod tidy 2>/dev/null
timeout 150 go test -v -count=1 . | grep -v '^=== '
