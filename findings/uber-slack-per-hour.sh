#!/usr/bin/env bash
# Guess: ratelimit.New(5, ratelimit.Per(time.Hour)) of Uber keeps some unused calls for later, but at most its 5.
# Seen: the slack is 10 calls whatever the rate. After a day without calls 11 leave immediately, and 15 in that hour.
# It means: for a quota of few calls in a long period the default lets three times the limit through. WithoutSlack keeps it.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get go.uber.org/ratelimit@v0.3.1 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/ratelimit"
)

func Test(t *testing.T) {
	for _, c := range []struct {
		name        string
		options     []ratelimit.Option
		burst, hour int
	}{{"default", nil, 11, 15}, {"WithoutSlack", []ratelimit.Option{ratelimit.WithoutSlack}, 1, 5}} {
		synctest.Test(t, func(t *testing.T) {
			limiter := ratelimit.New(5, append(c.options, ratelimit.Per(time.Hour))...)
			limiter.Take()
			time.Sleep(24 * time.Hour)
			begin := time.Now()
			burst, hour := 0, 0
			for limiter.Take(); time.Since(begin) < time.Hour; limiter.Take() {
				hour++
				if time.Since(begin) == 0 {
					burst++
				}
			}
			t.Logf("ratelimit v0.3.1, 5 per hour, %s: after a day %d immediately, %d within an hour", c.name, burst, hour)
			if burst != c.burst || hour != c.hour {
				t.Errorf("want %d and %d", c.burst, c.hour)
			}
		})
	}
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
