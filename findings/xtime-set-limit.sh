#!/usr/bin/env bash
# Guess: SetLimit of rate.Limiter applies to the calls that wait in Wait, too: at a higher limit they leave earlier.
# Seen: they keep the times of the old limit. Three calls that wait at 1 per hour leave after 1, 2 and 3 hours, although
# SetLimit(rate.Inf) came immediately. A call after it leaves immediately, before them.
# It means: a limiter that is slowed down after a 429 and set back later keeps those waiting calls slow, and out of order.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get golang.org/x/time/rate@v0.16.0 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

func Test(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := rate.NewLimiter(rate.Every(time.Hour), 1)
		limiter.Allow()
		begin := time.Now()
		left := make(chan time.Duration, 4)
		wait := func() {
			if err := limiter.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			left <- time.Since(begin)
		}
		for range 3 {
			go wait()
			synctest.Wait()
		}
		limiter.SetLimit(rate.Inf)
		wait()
		for i := range 4 {
			at := <-left
			t.Logf("x/time v0.16.0: call %d leaves after %v", i+1, at)
			if at != time.Duration(i)*time.Hour {
				t.Errorf("want %d hours", i)
			}
		}
	})
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
