package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// server starts a server that ends with the test. Without one the test is skipped, or fails where
// servers are required.
func server(t *testing.T) rueidis.ClientOption {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil && os.Getenv("DRIPFEED_REQUIRE_REDIS") == "" {
		t.Skip("there is no redis-server")
	}
	dir, err := os.MkdirTemp("", "rueidis") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(program, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			break
		}
	}
	return rueidis.ClientOption{
		InitAddress: []string{"unix"}, ForceSingleClient: true, DisableCache: true,
		DialCtxFn: func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		},
	}
}

// A store by rueidis conforms to the contract of stores.
func TestDo_Conforms(t *testing.T) {
	option := server(t)
	outboundtest.TestStore(t, func(t *testing.T) store.Store {
		client, err := rueidis.NewClient(option)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		return redisstore.New(by(client), redisstore.Config{Timeout: time.Minute})
	})
}

// Two stores share the limit.
func TestRun_SharesTheLimit(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out, server(t)); err != nil || out.String() != "20 of 30 calls are admitted; the limit is 20\n" {
		t.Errorf("%v, %q", err, &out)
	}
}
