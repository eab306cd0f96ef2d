#!/usr/bin/env bash
# Guess: the sliding window counter of go-chi/httprate lets a few more than its limit through in any window, not twice
#   the limit: that is what it is chosen for instead of a fixed window. Its Retry-After is the time until a call fits.
# Seen: 100 in the last second of a window, then one each 0.6 s as their weight falls: 199 in one minute with a limit of
# 100 per minute. Retry-After is 60 on every refusal, although the next request fits after 0.6 s.
# It means: a client of such an API can be admitted at nearly twice the limit, and waits 100 times too long if it honours it.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/go-chi/httprate@v0.16.1 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/httprate"
)

func Test(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := httprate.Limit(100, time.Minute)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		var admitted []time.Time
		begin, refused := time.Now(), map[string]int{}
		time.Sleep(59500 * time.Millisecond)
		for ; time.Since(begin) < 3*time.Minute; time.Sleep(100 * time.Millisecond) {
			for range 101 {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				if w.Code == http.StatusTooManyRequests {
					refused[w.Header().Get("Retry-After")]++
					break
				}
				admitted = append(admitted, time.Now())
			}
		}
		most, gap, j := 0, time.Duration(0), 0
		for i, at := range admitted {
			for at.Sub(admitted[j]) >= time.Minute {
				j++
			}
			most = max(most, i-j+1)
			if i > 0 {
				gap = max(gap, at.Sub(admitted[i-1]))
			}
		}
		t.Logf("httprate v0.16.1, 100 per minute: up to %d in one minute, at most %v apart; refusals by Retry-After: %v", most, gap, refused)
		if most < 190 || gap > 2*time.Second || len(refused) != 1 || refused["60"] == 0 {
			t.Error("want some 199, less than 2s apart, and Retry-After: 60 always")
		}
	})
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
