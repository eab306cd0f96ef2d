#!/usr/bin/env bash
# Guess: a message that a JetStream consumer puts back with NakWithDelay, as one does after a 429, frees its place in
#   MaxAckPending until the delay ends: the next message is delivered meanwhile.
# Seen: with MaxAckPending 1 nothing is delivered until the delay of 2 s ends. The delayed message keeps its place.
# It means: MaxAckPending bounds the delayed messages, too. One key's long Retry-After stops all others once as many
# messages are delayed. A put-back message needs a place of its own, such as a second subject.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/nats-io/nats-server/v2/server@v2.15.3 github.com/nats-io/nats.go@v1.55.0 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "jobs", Subjects: []string{"jobs"}, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := js.Publish(t.Context(), "jobs", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for pending, early := range map[int]int{1: 1, 2: 3} {
		consumer, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{MaxAckPending: pending, AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		type delivery struct {
			job string
			at  time.Duration
		}
		got := make(chan delivery, 10)
		begin := time.Now()
		consume, err := consumer.Consume(func(m jetstream.Msg) {
			got <- delivery{string(m.Data()), time.Since(begin)}
			if meta, err := m.Metadata(); err == nil && string(m.Data()) == "0" && meta.NumDelivered == 1 {
				_ = m.NakWithDelay(2 * time.Second)
				return
			}
			_ = m.Ack()
		})
		if err != nil {
			t.Fatal(err)
		}
		order, soon := "", 0
		for range 4 {
			d := <-got
			order += fmt.Sprintf(" %s at %v", d.job, d.at.Round(100*time.Millisecond))
			if d.at < 1500*time.Millisecond {
				soon++
			}
		}
		consume.Stop()
		t.Logf("nats-server v2.15.3, MaxAckPending %d, job 0 put back for 2s: job%s", pending, order)
		if soon != early {
			t.Errorf("%d before the delay ended, want %d", soon, early)
		}
	}
}
GO
timeout 200 go test -v -count=1 . | grep -v '^=== '
