#!/usr/bin/env bash
# Guess: stripe-go sends a 503 again, and heeds the header Stripe-Should-Retry, as its function shouldRetry reads.
# Seen: with an error in JSON, as Stripe sends it, neither the status nor the header counts, and one attempt is made.
# Only a response that is no JSON is sent again, and that even if the header says false.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get -t github.com/stripe/stripe-go/v85@v85.0.0 2>/dev/null
cat >finding_test.go <<'END'
package finding

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stripe/stripe-go/v85"
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
	const json = `{"error": {"type": "api_error", "message": "no"}}`
	for _, c := range []struct {
		status   int
		retry    string
		body     string
		attempts int
	}{{503, "", json, 1}, {503, "true", json, 1}, {409, "true", json, 1}, {503, "", "<html></html>", 3}, {503, "false", "<html></html>", 3}} {
		synctest.Test(t, func(t *testing.T) {
			api := &answer{status: c.status, header: http.Header{"Stripe-Should-Retry": {c.retry}}, body: c.body}
			backends := stripe.NewBackendsWithConfig(&stripe.BackendConfig{
				HTTPClient: &http.Client{Transport: api}, LeveledLogger: &stripe.LeveledLogger{}})
			_, err := stripe.NewClient("key", stripe.WithBackends(backends)).V1Customers.Retrieve(t.Context(), "cus_1", nil)
			t.Logf("%d, Stripe-Should-Retry: %q, body %.9q: %d attempts", c.status, c.retry, c.body, api.n)
			if err == nil || api.n != c.attempts {
				t.Errorf("%v, want %d attempts", err, c.attempts)
			}
		})
	}
}
END
timeout 120 go mod tidy 2>/dev/null
timeout 150 go test -v -count=1 . | grep -v '^=== '
