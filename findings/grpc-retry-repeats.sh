#!/usr/bin/env bash
# Guess: the retry interceptor of go-grpc-middleware repeats a server stream only before its first message, as gRPC's
#   own retries do (gRFC A6).
# Seen: after messages 1 and 2 and an Unavailable, the second attempt's 1 and 2 follow: the program receives 1 2 1 2 and
# then io.EOF, without an error.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get -t github.com/grpc-ecosystem/go-grpc-middleware/v2@v2.3.4 google.golang.org/grpc@v1.85.0 2>/dev/null
cat >finding_test.go <<'END'
package finding

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/retry"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func Test(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts, listener := 0, bufconn.Listen(1<<16)
		server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			attempts++
			for i := range health.HealthCheckResponse_ServingStatus(2) {
				if err := s.SendMsg(&health.HealthCheckResponse{Status: i + 1}); err != nil {
					return err
				}
			}
			if attempts == 1 {
				return status.Error(codes.Unavailable, "no")
			}
			return nil
		}))
		go server.Serve(listener)
		defer server.Stop()
		conn, err := grpc.NewClient("passthrough:///api", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStreamInterceptor(retry.StreamClientInterceptor(retry.WithMax(5))),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stream, err := health.NewHealthClient(conn).Watch(t.Context(), &health.HealthCheckRequest{})
		got := ""
		for err == nil {
			var m *health.HealthCheckResponse
			if m, err = stream.Recv(); err == nil {
				got += fmt.Sprint(int(m.Status), " ")
			}
		}
		t.Logf("received %sin %d attempts: %v", got, attempts, err)
		if got != "1 2 1 2 " || !errors.Is(err, io.EOF) {
			t.Error("want 1 2 1 2 and EOF")
		}
	})
}
END
timeout 120 go mod tidy 2>/dev/null
timeout 150 go test -v -count=1 . | grep -v '^=== '
