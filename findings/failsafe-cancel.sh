#!/usr/bin/env bash
# Guess: a call of failsafe-go that stops waiting in AcquirePermit, because its context ends, leaves its permit to others,
#   as x/time does when the newest cancels. The next call waits as if it had never come.
# Seen: the permit stays taken. With 10 per minute, 100 calls that give up after 100 ms use up the next ten minutes: a call
# after them waits for 11 minutes, while none leaves. AcquirePermitWithMaxWait refuses in advance, and takes nothing.
# It means: clients with timeouts block a limiter for as long as their calls would have taken. A context is no bound for a wait.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/failsafe-go/failsafe-go/ratelimiter@v0.9.8 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
)

func Test(t *testing.T) {
	for name, want := range map[string]time.Duration{"AcquirePermit": 10*time.Minute + 59900*time.Millisecond, "AcquirePermitWithMaxWait": 59900 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			limiter := ratelimiter.NewBursty[any](10, time.Minute)
			limiter.TryAcquirePermits(10)
			left := 0
			for range 100 {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					var err error
					if name == "AcquirePermit" {
						err = limiter.AcquirePermit(ctx)
					} else {
						err = limiter.AcquirePermitWithMaxWait(ctx, 100*time.Millisecond)
					}
					if err == nil {
						left++
					}
				}()
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			begin := time.Now()
			err := limiter.AcquirePermit(t.Context())
			t.Logf("failsafe-go v0.9.8, 10 per minute, %s: %d of 100 left, the next call waits for %v", name, left, time.Since(begin))
			if err != nil || left != 0 || time.Since(begin) != want {
				t.Errorf("%v, want %v", err, want)
			}
		})
	}
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
