#!/usr/bin/env bash
# Guess: the retry quota of aws-sdk-go-v2, which its docs call a token bucket, refills with time, as token buckets do. An
#   hour after an outage a refused call is tried three times again, as the defaults say.
# Seen: it never refills with time. A client has tokens for some 100 retries of throttled calls, and then each refused
# call makes one attempt, a day later, too. Only successful calls return tokens, one each.
# It means: after an outage a client that calls seldom has no retries for a long time: each refused call is an error.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/aws/aws-sdk-go-v2/aws@v1.48.0 github.com/aws/aws-sdk-go-v2/service/sts@v1.52.0 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

type api struct{ attempts, status int }

func (a *api) Do(r *http.Request) (*http.Response, error) {
	a.attempts++
	body := `<ErrorResponse><Error><Code>Throttling</Code><Message>Rate exceeded</Message></Error></ErrorResponse>`
	if a.status == 200 {
		body = `<GetCallerIdentityResponse><GetCallerIdentityResult/></GetCallerIdentityResponse>`
	}
	return &http.Response{StatusCode: a.status, Header: http.Header{"Content-Type": {"text/xml"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func Test(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		client := sts.New(sts.Options{Region: "us-east-1", HTTPClient: a, Credentials: aws.AnonymousCredentials{}})
		attempts := func(status, calls int) int {
			a.attempts, a.status = 0, status
			for range calls {
				_, err := client.GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{})
				if (err == nil) != (status == 200) {
					t.Fatal(err)
				}
			}
			return a.attempts
		}
		first := attempts(400, 1)
		outage := attempts(400, 300)
		time.Sleep(24 * time.Hour)
		later := attempts(400, 10)
		attempts(200, 100)
		after := attempts(400, 100)
		t.Logf("aws-sdk-go-v2 v1.48.0: a throttled call makes %d attempts, 300 more make %d; a day later 10 make %d; after 100 successful calls 100 make %d", first, outage, later, after)
		if first != 3 || outage >= 420 || later > 11 || after <= 101 {
			t.Error("this has changed")
		}
	})
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
