#!/usr/bin/env bash
# Guess: go-github-ratelimit, which keeps GitHub's primary limits by category, sends no more searches once the limit for
#   searches is used up, and goes on with other requests.
# Seen: 10 of 10 further searches are sent, all refused. It files each request under "core": it reads the URL's RawPath,
# which net/url leaves empty for ordinary paths. When core's limit is used up it holds searches, too, whose limit is not.
# It means: a search loop goes on through its refusals, for which GitHub may ban an integration, and core's refusal stops searches.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/gofri/go-github-ratelimit/v2/github_ratelimit@v2.0.2 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofri/go-github-ratelimit/v2/github_ratelimit"
)

// github refuses the requests of one category as GitHub does, and counts all by category.
type github struct {
	refused string
	n       map[string]int
}

func (g *github) RoundTrip(req *http.Request) (*http.Response, error) {
	category := "core"
	if strings.HasPrefix(req.URL.Path, "/search/") {
		category = "search"
	}
	g.n[category]++
	resp := &http.Response{StatusCode: 200, Header: http.Header{"X-Ratelimit-Resource": {category}, "X-Ratelimit-Remaining": {"9"}},
		Request: req, ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(strings.NewReader("{}"))}
	if category == g.refused {
		resp.StatusCode = 403
		resp.Header.Set("X-Ratelimit-Remaining", "0")
		resp.Header.Set("X-Ratelimit-Reset", strconv.FormatInt(time.Now().Unix()+60, 10))
		resp.Body = io.NopCloser(strings.NewReader(`{"message": "API rate limit exceeded"}`))
	}
	return resp, nil
}

func Test(t *testing.T) {
	for refused, want := range map[string][2]int{"search": {11, 11}, "core": {1, 0}} {
		synctest.Test(t, func(t *testing.T) {
			api := &github{refused, map[string]int{}}
			client := github_ratelimit.NewClient(api)
			get := func(category string) {
				path := map[string]string{"core": "repos/o/r", "search": "search/issues?q=x"}[category]
				if resp, err := client.Get("http://api.example.com/" + path); err == nil {
					resp.Body.Close()
				}
			}
			for range 11 {
				get(refused)
			}
			other := map[string]string{"core": "search", "search": "core"}[refused]
			for range 11 {
				get(other)
			}
			got := [2]int{api.n[refused], api.n[other]}
			t.Logf("go-github-ratelimit v2.0.2, %s used up: of 11 requests each, %d of %s and %d of %s arrived", refused, got[0], refused, got[1], other)
			if got != want {
				t.Errorf("want %v", want)
			}
			time.Sleep(2 * time.Minute)
		})
	}
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
