package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore/rowstest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// server starts a member on a socket, which ends with the test.
func server(t *testing.T) (endpoint string, process *os.Process) {
	t.Helper()
	dir := exampletest.Dir(t)
	endpoint = "unix://" + filepath.Join(dir, "localhost:1") // as etcd names the socket
	process = exampletest.Server(t, "ETCD", dir, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := open(ctx, endpoint)
		if err == nil {
			err = r.client.Close()
		}
		return err
	}, "etcd", "--data-dir", "data", "--listen-client-urls", "unix://localhost:1", "--advertise-client-urls", "unix://localhost:1",
		"--listen-peer-urls", "unix://localhost:2", "--initial-advertise-peer-urls", "unix://localhost:2", "--initial-cluster", "default=unix://localhost:2",
		"--unsafe-no-fsync")
	return endpoint, process
}

func rowsOf(t *testing.T, endpoint string) *rows {
	t.Helper()
	r := exampletest.Must(open(t.Context(), endpoint))
	t.Cleanup(func() { _ = r.client.Close() })
	return r
}

// The rows conform, and the example runs.
func TestRows_Conform(t *testing.T) {
	endpoint, _ := server(t)
	exampletest.NoError(t, run(endpoint, 2))
	rowstest.TestRows(t, func(t *testing.T) rowstore.Rows { return rowsOf(t, endpoint) })
}

// A row is kept for as long as it must be. A lease that is gone is made again.
func TestRows_LeaseOutlivesKeep(t *testing.T) {
	endpoint, _ := server(t)
	r := rowsOf(t, endpoint)
	leases := map[int64]bool{}
	write := func(token uint64, keep time.Duration) error {
		swaps := []rowstore.Swap{{Key: []byte("key"), Old: token - 1, Token: token, New: []byte("row"), Time: now().Truncate(time.Microsecond), Keep: keep}}
		if err := r.Swap(t.Context(), swaps); err != nil {
			return err
		}
		row, err := r.client.Get(t.Context(), prefix+"key")
		if err != nil || !swaps[0].Done {
			return fmt.Errorf("done %v, %w", swaps[0].Done, err)
		}
		lease := row.Kvs[0].Lease
		leases[lease] = true
		left, err := r.client.TimeToLive(t.Context(), clientv3.LeaseID(lease))
		if err == nil && time.Duration(left.TTL+1)*time.Second < keep {
			err = fmt.Errorf("the row stays for %d s, and must for %v", left.TTL, keep)
		}
		return err
	}
	for i, keep := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, time.Second} {
		exampletest.NoError(t, write(uint64(i+1), keep))
	}
	if len(leases) != 2 {
		t.Errorf("%d leases, want 2", len(leases))
	}
	if _, err := r.client.Revoke(t.Context(), r.lease.Load().id); err != nil { // the row goes with it
		t.Fatal(err)
	}
	if err := write(1, time.Minute); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without its lease the error is %v", err)
	}
	exampletest.NoError(t, write(1, time.Minute))
}

// A value of another program fails the calls of its own key only, until somebody deletes it.
func TestRows_ValueOfAnotherProgram(t *testing.T) {
	endpoint, _ := server(t)
	r := rowsOf(t, endpoint)
	for _, text := range []string{"text", "a longer text"} {
		exampletest.Must(r.client.Put(t.Context(), prefix+"theirs", text))
		swaps := []rowstore.Swap{{Key: []byte("ours")}, {Key: []byte("theirs")}}
		for i := range swaps {
			s := &swaps[i]
			s.Token, s.New, s.Time, s.Keep = 1, []byte("row"), now().Truncate(time.Microsecond), time.Minute
		}
		if err := r.Swap(t.Context(), swaps); err != nil || swaps[0].Busy || swaps[0].Row.Token != 1 || swaps[1].Done || !swaps[1].Busy {
			t.Errorf("%q: %+v, %v", text, swaps, err)
		}
	}
}

// Errors that a wait may cure match ErrUnavailable.
func TestRows_ErrorsThatAWaitMayCure(t *testing.T) {
	for err, want := range map[error]bool{
		rpctypes.ErrLeaderChanged: true, rpctypes.ErrNoSpace: true, rpctypes.ErrTimeout: true, rpctypes.ErrLeaseNotFound: true,
		context.DeadlineExceeded: true, rpctypes.ErrGRPCNoLeader: true, rpctypes.ErrNotLeader: true, rpctypes.ErrPermissionDenied: false,
		rpctypes.ErrInvalidAuthToken: false, rpctypes.ErrGRPCRequestTooLarge: false, nil: false,
	} {
		if got := errors.Is(explain(err), store.ErrUnavailable); got != want {
			t.Errorf("%v: unavailable %v, want %v", err, got, want)
		}
	}
}

// A server that hangs is an outage until it goes on, and no call counts twice.
func TestRows_ServerHangs(t *testing.T) {
	endpoint, process := server(t)
	exampletest.Outage(t, rowstore.New(rowsOf(t, endpoint), rowstore.Config{Timeout: 4 * time.Second}), process)
}
