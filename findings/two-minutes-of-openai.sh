#!/usr/bin/env bash
# Guess: the SDKs of OpenAI and Anthropic, which come from the same generator, wait alike for a long Retry-After.
#   A good engineer expects a cap, such as 60 s, after which they use their own backoff of at most 8 s.
# Seen: openai-go waits up to 120 s, and returns the first 429 if 121 are asked. anthropic-sdk-go waits for an hour,
# twice. If the context ends during the wait, both report the context's error and no 429.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get -t github.com/openai/openai-go/v3@v3.99.0 github.com/anthropics/anthropic-sdk-go@v1.84.0 2>/dev/null
cat >finding_test.go <<'END'
package finding

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
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
	sdks := map[string]func(context.Context, *http.Client) error{
		"openai": func(ctx context.Context, client *http.Client) error {
			c := openai.NewClient(option.WithAPIKey("key"), option.WithBaseURL("http://api.example.com"), option.WithHTTPClient(client))
			_, err := c.Models.List(ctx)
			return err
		},
		"anthropic": func(ctx context.Context, client *http.Client) error {
			c := anthropic.NewClient(anthropicoption.WithAPIKey("key"), anthropicoption.WithBaseURL("http://api.example.com"), anthropicoption.WithHTTPClient(client))
			_, err := c.Models.List(ctx, anthropic.ModelListParams{})
			return err
		},
	}
	for _, c := range []struct {
		sdk      string
		seconds  int
		timeout  time.Duration
		attempts int
		took     time.Duration
		deadline bool
	}{
		{"openai", 120, 24 * time.Hour, 3, 4 * time.Minute, false}, {"openai", 121, 24 * time.Hour, 1, 0, false},
		{"anthropic", 121, 24 * time.Hour, 3, 242 * time.Second, false}, {"anthropic", 3600, 24 * time.Hour, 3, 2 * time.Hour, false},
		{"openai", 60, 10 * time.Second, 1, 10 * time.Second, true}, {"anthropic", 60, 10 * time.Second, 1, 10 * time.Second, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := &answer{status: 429, header: http.Header{"Retry-After": {strconv.Itoa(c.seconds)}, "Content-Type": {"application/json"}},
				body: `{"error": {"message": "no"}}`}
			ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
			defer cancel()
			begin := time.Now()
			err := sdks[c.sdk](ctx, &http.Client{Transport: api})
			took := time.Since(begin)
			t.Logf("%s, Retry-After: %d: %d attempts in %v: %.60v", c.sdk, c.seconds, api.n, took, err)
			if api.n != c.attempts || took != c.took || errors.Is(err, context.DeadlineExceeded) != c.deadline {
				t.Errorf("want %d in %v", c.attempts, c.took)
			}
		})
	}
}
END
timeout 120 go mod tidy 2>/dev/null
timeout 150 go test -v -count=1 . | grep -v '^=== '
