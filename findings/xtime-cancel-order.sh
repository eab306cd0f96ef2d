#!/usr/bin/env bash
# Guess: when calls in rate.Limiter.Wait are canceled, their tokens return. The next call waits as if they had never come.
# Seen: the order decides. 10 waiting calls at 1 per second, all canceled: if the newest ends first, the next call waits
# for 1 s. If the oldest ends first, it waits for 10 s, although no call is waiting and none has left: a cancel returns
# only what no later reservation has been built on.
# It means: clients that give up in the order in which they came leave the limit unused for the time they would have taken.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get golang.org/x/time/rate@v0.16.0 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

func Test(t *testing.T) {
	for order, want := range map[string]time.Duration{"newest first": time.Second, "oldest first": 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			limiter := rate.NewLimiter(1, 1)
			limiter.Allow()
			var cancels []context.CancelFunc
			left := 0
			for range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				cancels = append(cancels, cancel)
				go func() {
					if limiter.Wait(ctx) == nil {
						left++
					}
				}()
				synctest.Wait()
			}
			if order == "newest first" {
				slices.Reverse(cancels)
			}
			for _, cancel := range cancels {
				cancel()
				synctest.Wait()
			}
			begin := time.Now()
			err := limiter.Wait(t.Context())
			t.Logf("x/time v0.16.0, %s: %d of 10 left, the next call waits for %v", order, left, time.Since(begin))
			if err != nil || left != 0 || time.Since(begin) != want {
				t.Errorf("%v, want %v", err, want)
			}
		})
	}
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
