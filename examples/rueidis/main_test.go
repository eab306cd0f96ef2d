package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// server starts a server that ends with the test.
func server(t *testing.T) rueidis.ClientOption {
	t.Helper()
	dir := exampletest.Dir(t)
	socket := filepath.Join(dir, "s")
	exampletest.Server(t, "REDIS", dir, func() error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			err = conn.Close()
		}
		return err
	}, "redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
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
		client := exampletest.Must(rueidis.NewClient(option))
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
