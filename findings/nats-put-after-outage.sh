#!/usr/bin/env bash
# Guess: a Put of NATS KV that has failed with "context deadline exceeded" while the server was away is over. What another
#   program puts once the server is back stays.
# Seen: the client keeps the failed Put in its buffer, and sends it when it connects again. It replaces the newer value.
# It means: an error by ctx does not end a Put. Use Update with a revision for what must not come late, and set
#   ReconnectBufSize(-1), by which a Put of an outage fails and is not sent.
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
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func start(t *testing.T, dir string, port int) *server.Server {
	s, err := server.NewServer(&server.Options{JetStream: true, StoreDir: dir, Host: "127.0.0.1", Port: port, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s
}

func bucket(t *testing.T, url string, options ...nats.Option) (*nats.Conn, jetstream.KeyValue) {
	conn, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateOrUpdateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b"})
	if err != nil {
		t.Fatal(err)
	}
	return conn, kv
}

func Test(t *testing.T) {
	for size, want := range map[int]string{0: "late", -1: "newer"} {
		dir := t.TempDir()
		s := start(t, dir, -1)
		url, port := s.ClientURL(), s.Addr().(*net.TCPAddr).Port
		conn, a := bucket(t, url, nats.ReconnectWait(5*time.Second), nats.ReconnectBufSize(size))
		s.Shutdown()
		s.WaitForShutdown()
		for conn.Status() != nats.RECONNECTING {
			time.Sleep(time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, failed := a.Put(ctx, "key", []byte("late"))
		cancel()
		s = start(t, dir, port)
		_, b := bucket(t, url)
		if _, err := b.Put(t.Context(), "key", []byte("newer")); err != nil {
			t.Fatal(err)
		}
		for conn.Status() != nats.CONNECTED {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		entry, err := b.Get(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("nats.go v1.55.0, ReconnectBufSize(%d): the Put in the outage fails with %q; the value is %q in the end", size, failed, entry.Value())
		if string(entry.Value()) != want || size == 0 && !errors.Is(failed, context.DeadlineExceeded) || failed == nil {
			t.Errorf("want %q", want)
		}
		s.Shutdown()
		s.WaitForShutdown()
	}
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
