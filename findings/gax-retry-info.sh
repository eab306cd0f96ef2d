#!/usr/bin/env bash
# Guess: gax-go, under all of Google Cloud's gRPC clients in Go, waits as long as the RetryInfo of a ResourceExhausted asks:
#   its own apierror decodes it.
# Seen: a RetryInfo of 60 s is ignored. With the backoff of 1 s to 10 s that the caller sets, several attempts are made
# within the first minute, the first within a second.
# It means: the time to retry that a quota of Google Cloud states in its error must be read from the error by the caller.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/googleapis/gax-go/v2@v2.27.0 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/googleapis/gax-go/v2"
	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

func Test(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusal, err := status.New(codes.ResourceExhausted, "quota").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		begin, early, first := time.Now(), 0, time.Duration(0)
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		var last error
		_ = gax.Invoke(ctx, func(context.Context, gax.CallSettings) error {
			if early++; early == 2 {
				first = time.Since(begin)
			}
			last = refusal.Err()
			return last
		}, gax.WithRetry(func() gax.Retryer {
			return gax.OnCodes([]codes.Code{codes.ResourceExhausted}, gax.Backoff{Initial: time.Second, Max: 10 * time.Second, Multiplier: 2})
		}))
		apiError, _ := apierror.FromError(last)
		delay := time.Duration(0)
		if apiError != nil && apiError.Details().RetryInfo != nil {
			delay = apiError.Details().RetryInfo.RetryDelay.AsDuration()
		}
		t.Logf("gax-go v2.27.0, RetryInfo %v: %d attempts in 59s, the second after %v", delay, early, first)
		if errors.Is(last, context.DeadlineExceeded) || delay != time.Minute || early < 4 || first > time.Second {
			t.Error("want more than 3, the second within a second")
		}
	})
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
