#!/usr/bin/env bash
# Guess: stripe-go sends nothing again after a 429 (but a lock_timeout), so above go-retryablehttp's StandardClient an endless
#   429 makes the 5 attempts of the latter and returns a *stripe.Error with status 429. slack-go returns its RateLimitedError.
# Seen: stripe-go makes 15. After its 5 attempts go-retryablehttp drops the response and returns an error, "giving up". To
# stripe-go that is a broken connection, for which it has two retries. Neither SDK's error comes out: a program that
# looks for the 429 or its Retry-After finds only a *url.Error. With ErrorHandler: PassthroughErrorHandler it is as guessed.
# It means: a retry client below an SDK must return the last response, or it multiplies attempts and hides the refusal.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/hashicorp/go-retryablehttp@v0.7.8 github.com/slack-go/slack@v0.36.0 github.com/stripe/stripe-go/v85@v85.0.0 2>/dev/null
cat >finding_test.go <<'END'
package finding

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/slack-go/slack"
	"github.com/stripe/stripe-go/v85"
)

// answer gives each request the same 429, in no time.
type answer struct{ n int }

func (a *answer) RoundTrip(req *http.Request) (*http.Response, error) {
	a.n++
	return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"2"}}, Request: req, ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader(`{"ok": false, "error": {"type": "invalid_request_error", "code": "rate_limit"}}`))}, nil
}

func charge(client *http.Client) (seen bool) {
	config := &stripe.BackendConfig{HTTPClient: client, LeveledLogger: &stripe.LeveledLogger{}}
	api := stripe.NewClient("sk_test", stripe.WithBackends(stripe.NewBackendsWithConfig(config)))
	params := &stripe.ChargeCreateParams{Amount: stripe.Int64(100)}
	params.SetIdempotencyKey("order-1")
	_, err := api.V1Charges.Create(context.Background(), params)
	return errors.As(err, new(*stripe.Error))
}

func post(client *http.Client) (seen bool) {
	_, _, err := slack.New("xoxb", slack.OptionHTTPClient(client)).PostMessage("C1", slack.MsgOptionText("hello", false))
	return errors.As(err, new(*slack.RateLimitedError))
}

func Test(t *testing.T) {
	for _, c := range []struct {
		name    string
		call    func(*http.Client) bool
		handler retryablehttp.ErrorHandler
		n       int
	}{{"stripe-go v85.0.0", charge, nil, 15}, {"slack-go v0.36.0", post, nil, 5},
		{"stripe-go v85.0.0, passed through", charge, retryablehttp.PassthroughErrorHandler, 5},
		{"slack-go v0.36.0, passed through", post, retryablehttp.PassthroughErrorHandler, 5}} {
		synctest.Test(t, func(t *testing.T) {
			api, client := &answer{}, retryablehttp.NewClient()
			client.Logger, client.HTTPClient, client.ErrorHandler = nil, &http.Client{Transport: api}, c.handler
			seen := c.call(client.StandardClient())
			t.Logf("%s above go-retryablehttp v0.7.8, endless 429: %d attempts, the SDK's error for it: %v", c.name, api.n, seen)
			if api.n != c.n || seen != (c.handler != nil) {
				t.Errorf("want %d", c.n)
			}
		})
	}
}
END
timeout 60 go mod tidy 2>/dev/null
timeout 150 go test -v -count=1 . | grep -v '^=== '
