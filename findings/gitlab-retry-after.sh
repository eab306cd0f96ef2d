#!/usr/bin/env bash
# Guess: the GitLab client heeds the Retry-After that GitLab sends with a 429.
# Seen: it reads only RateLimit-Reset: with a Retry-After of 60 s alone, 6 attempts are over after some 4 s. A proxy
# that strips the RateLimit headers, or a limit of the application that has none, gets all of them.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get -t gitlab.com/gitlab-org/api/client-go/v2@v2.64.0 2>/dev/null
cat >finding_test.go <<'END'
package finding

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gitlab "gitlab.com/gitlab-org/api/client-go/v2"
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
	for name, long := range map[string]bool{"Retry-After": false, "Ratelimit-Reset": true} {
		synctest.Test(t, func(t *testing.T) {
			value := "60"
			if long {
				value = strconv.FormatInt(time.Now().Add(time.Minute).Unix(), 10)
			}
			api := &answer{status: 429, header: http.Header{name: {value}}, body: "Retry later"}
			client, err := gitlab.NewClient("token", gitlab.WithBaseURL("http://api.example.com"), gitlab.WithHTTPClient(&http.Client{Transport: api}))
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			_, _, err = client.Users.CurrentUser()
			took := time.Since(begin)
			t.Logf("%s of 60s: %d attempts in %v", name, api.n, took)
			if err == nil || api.n != 6 || long != (took > 30*time.Second) {
				t.Error("want 6, and more than 30s only after a RateLimit-Reset")
			}
		})
	}
}
END
timeout 120 go mod tidy 2>/dev/null
timeout 150 go test -v -count=1 . | grep -v '^=== '
