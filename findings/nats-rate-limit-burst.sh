#!/usr/bin/env bash
# Guess: a JetStream consumer with RateLimit 80,000 bit/s, some 10 messages of 900 bytes per second, gets some 10 in its
#   first second, at most a few more.
# Seen: 1,101 of them in the first second, and 10 per second from then on. The limit is a token bucket whose burst is the
# stream's MaxMsgSize, or the server's max_payload of 1 MiB if that is not set, whatever the rate.
# It means: each consumer that starts sends a burst of 100 seconds' worth. MaxMsgSize of the stream bounds it.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/nats-io/nats-server/v2/server@v2.15.3 github.com/nats-io/nats.go@v1.55.0 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

func Test(t *testing.T) {
	s, err := server.NewServer(&server.Options{JetStream: true, StoreDir: t.TempDir(), DontListen: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	conn, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int32{"unset": 0, "of 2,000": 2_000} {
		subject := map[bool]string{true: "unset", false: "small"}[size == 0]
		if _, err := js.AddStream(&nats.StreamConfig{Name: subject, Subjects: []string{subject}, Storage: nats.MemoryStorage, MaxMsgSize: size}); err != nil {
			t.Fatal(err)
		}
		for range 1500 {
			if _, err := js.PublishAsync(subject, make([]byte, 900)); err != nil {
				t.Fatal(err)
			}
		}
		<-js.PublishAsyncComplete()
		got := make(chan *nats.Msg, 2000)
		sub, err := js.ChanSubscribe(subject, got, nats.RateLimit(80_000), nats.AckNone())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		first := len(got)
		time.Sleep(2 * time.Second)
		then := len(got) - first
		t.Logf("nats-server v2.15.3, 80,000 bit/s, MaxMsgSize %s: %d messages in the first second, %d in the next two", name, first, then)
		if err := sub.Unsubscribe(); err != nil || size == 0 && first < 500 || size != 0 && first > 50 || then > 60 {
			t.Errorf("%v, want over 500 only if MaxMsgSize is unset, and some 20 then", err)
		}
	}
}
GO
timeout 200 go test -v -count=1 . | grep -v '^=== '
