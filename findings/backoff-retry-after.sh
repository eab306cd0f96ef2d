#!/usr/bin/env bash
# Guess: cenkalti/backoff waits as RetryAfter asks, and after a further failure goes on with its growing pauses.
# Seen: each RetryAfter begins the backoff again. After seven failures the pause is 6 s; after a RetryAfter of 10 s the
# next failures are 0.5 s, 0.75 s, 1.1 s apart, as for a new call.
# It means: a server that answers 429 with a Retry-After now and then, and 503 between, is asked at the fastest pace again.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/cenkalti/backoff/v5@v5.0.3 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"
)

func Test(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pauses := backoff.NewExponentialBackOff()
		pauses.RandomizationFactor = 0
		var at []time.Time
		_, _ = backoff.Retry(t.Context(), func() (int, error) {
			at = append(at, time.Now())
			if len(at) == 8 {
				return 0, backoff.RetryAfter(10)
			}
			return 0, errors.New("503")
		}, backoff.WithBackOff(pauses), backoff.WithMaxTries(11))
		var waits []time.Duration
		for i := range len(at) - 1 {
			waits = append(waits, at[i+1].Sub(at[i]).Round(time.Millisecond))
		}
		t.Logf("backoff v5.0.3, RetryAfter(10) at the eighth attempt: pauses %v", waits)
		if len(waits) != 10 || waits[6] < 5*time.Second || waits[7] != 10*time.Second || waits[8] != 500*time.Millisecond || waits[9] != 750*time.Millisecond {
			t.Error("this has changed")
		}
	})
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
