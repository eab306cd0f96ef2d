#!/usr/bin/env bash
# Guess: a Put of NATS KV by a user that may not publish there fails immediately, with the server's "permissions violation".
# Seen: it waits for its whole ctx, and fails with "context deadline exceeded". The server's answer goes to the handler of
#   asynchronous errors only.
# It means: by the error of the call a missing right looks like an outage, which retries do not cure. Log what
# nats.ErrorHandler gets.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/nats-io/nats-server/v2/server@v2.15.3 github.com/nats-io/nats.go@v1.55.0 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func Test(t *testing.T) {
	s, err := server.NewServer(&server.Options{
		JetStream: true, StoreDir: t.TempDir(), DontListen: true, NoSigs: true,
		Users: []*server.User{{Username: "reader", Password: "x", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"$KV.b.>"}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	handled := make(chan error, 10)
	conn, err := nats.Connect("", nats.InProcessServer(s), nats.UserInfo("reader", "x"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { handled <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	begin := time.Now()
	_, err = kv.Put(ctx, "key", []byte("value"))
	took := time.Since(begin)
	t.Logf("nats.go v1.55.0: the Put takes %.1f s: %v", took.Seconds(), err)
	if !errors.Is(err, context.DeadlineExceeded) || took < 1900*time.Millisecond {
		t.Error("want the end of ctx")
	}
	if err := <-handled; !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("the handler gets %v", err)
	} else {
		t.Logf("the handler gets %q", err)
	}
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
