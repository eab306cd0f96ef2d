package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore/rowstest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// server starts a server, which ends with the test.
func server(t *testing.T) (url string, process *os.Process) {
	t.Helper()
	dir := t.TempDir()
	process = exampletest.Server(t, "NATS", dir, func() error {
		files, _ := filepath.Glob(filepath.Join(dir, "*.ports"))
		for _, file := range files {
			var ports struct{ Nats []string }
			text, _ := os.ReadFile(file)
			if json.Unmarshal(text, &ports) == nil && len(ports.Nats) > 0 {
				url = ports.Nats[0]
				return nil
			}
		}
		return errors.New("it has not written its port")
	}, "nats-server", "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", dir, "--ports_file_dir", dir)
	return url, process
}

func rowsOf(t *testing.T, url string) *rows {
	t.Helper()
	r := exampletest.Must(open(t.Context(), url))
	t.Cleanup(r.conn.Close)
	return r
}

// The rows conform, and the example runs.
func TestRows_Conform(t *testing.T) {
	url, _ := server(t)
	exampletest.NoError(t, run(url, 2))
	rowstest.TestRows(t, func(t *testing.T) rowstore.Rows { return rowsOf(t, url) })
}

// A row that was deleted by hand begins again. One that was overwritten is full.
func TestRows_ChangedByHand(t *testing.T) {
	url, _ := server(t)
	r := rowsOf(t, url)
	s := rowstore.New(r, rowstore.Config{Timeout: 4 * time.Second})
	key := outbound.Must(outbound.NewSharedBucket(s, "key", outbound.Limit{Capacity: 2, LeakRate: 1e-5}))
	name := base64.RawURLEncoding.EncodeToString(s.Key("key"))
	for _, step := range []struct {
		change func() error
		want   error
	}{
		{func() error { return nil }, nil},
		{func() error { return r.kv.Delete(t.Context(), name) }, nil},
		{func() error { _, err := r.kv.PutString(t.Context(), name, "text"); return err }, outbound.ErrThrottled},
	} {
		exampletest.NoError(t, step.change())
		if _, err := key.Acquire(t.Context(), outbound.Cost{2}); !errors.Is(err, step.want) {
			t.Errorf("the error is %v, want %v", err, step.want)
		}
	}
}

// Errors that a wait may cure match ErrUnavailable.
func TestRows_ErrorsThatAWaitMayCure(t *testing.T) {
	for err, want := range map[error]bool{
		nats.ErrConnectionReconnecting: true, nats.ErrTimeout: true, context.DeadlineExceeded: true,
		jetstream.ErrNoStreamResponse: true, &jetstream.APIError{Code: 503, ErrorCode: 10077}: true,
		&jetstream.APIError{Code: 404, ErrorCode: jetstream.JSErrCodeStreamNotFound}: false, nats.ErrMaxPayload: false, nil: false,
	} {
		if got := errors.Is(explain(err), store.ErrUnavailable); got != want {
			t.Errorf("%v: unavailable %v, want %v", err, got, want)
		}
	}
}

// A server that hangs is an outage until it goes on, and no call counts twice.
func TestRows_ServerHangs(t *testing.T) {
	url, process := server(t)
	exampletest.Outage(t, rowstore.New(rowsOf(t, url), rowstore.Config{Timeout: 4 * time.Second}), process)
}
