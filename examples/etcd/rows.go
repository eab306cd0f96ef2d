package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// rows are keys of etcd 3.4 or later: a [rowstore.Rows].
type rows struct {
	client *clientv3.Client
	lease  atomic.Pointer[lease] // that of all rows, or nil
}

type lease struct {
	id    clientv3.LeaseID
	until time.Time // it does not end before
}

// prefix begins the keys of all rows.
const prefix = "dripfeed/"

// open connects to a cluster.
func open(ctx context.Context, endpoints ...string) (*rows, error) {
	// A member that hangs is left once it does not answer the keep-alive.
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second})
	if err != nil {
		return nil, err
	}
	if _, err = client.Get(ctx, prefix); err != nil { // New does not wait for an answer
		return nil, errors.Join(fmt.Errorf("no answer from %q: %w", endpoints, err), client.Close())
	}
	return &rows{client: client}, nil
}

// Swap implements [rowstore.Rows]. A request of etcd has at most 128 operations and 1.5 MB.
func (r *rows) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	for part := range slices.Chunk(swaps, 64) {
		if err := r.swap(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// swap carries swaps out in one transaction, which has another one for each. A transaction that
// only reads is linearizable: a member that is behind catches up first.
func (r *rows) swap(ctx context.Context, swaps []rowstore.Swap) error {
	ops := make([]clientv3.Op, len(swaps))
	var keep time.Duration
	for i := range swaps {
		if swaps[i].New != nil {
			keep = max(keep, swaps[i].Keep)
		}
	}
	id, err := r.leaseFor(ctx, keep)
	if err != nil {
		return explain(err)
	}
	for i := range swaps {
		s, key := &swaps[i], prefix+string(swaps[i].Key)
		s.Clock, ops[i] = now(), clientv3.OpGet(key)
		if s.New == nil || !s.InTime() {
			continue
		}
		value, old := clientv3.Value(key), textOf(s.Old)
		have := []clientv3.Cmp{clientv3.Compare(value, ">", old), clientv3.Compare(value, "<", old+"\x01")}
		if s.Old == 0 {
			have = []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)} // no row
		}
		put := clientv3.OpPut(key, textOf(s.Token)+"\x00"+string(s.New), clientv3.WithLease(id))
		ops[i] = clientv3.OpTxn(have, []clientv3.Op{put}, []clientv3.Op{ops[i]})
	}
	reply, err := r.client.Txn(ctx).Then(ops...).Commit()
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		r.lease.Store(nil)
	}
	if err != nil {
		return explain(err)
	}
	for i := range swaps {
		read(&swaps[i], reply.Responses[i])
	}
	return nil
}

// read reads a swap's result, and the clock after it. etcd has no clock to ask for. A value that is
// no row, of another program, is like a row that another process has locked: delete the key.
func read(s *rowstore.Swap, result *etcdserverpb.ResponseOp) {
	s.Row, s.Done, s.Busy, s.Clock, s.Own = rowstore.Row{}, false, false, now(), true
	if t := result.GetResponseTxn(); t != nil {
		if s.Done = t.Succeeded; s.Done {
			s.Row = rowstore.Row{Token: s.Token, Bytes: s.New}
			return
		}
		result = t.Responses[0]
	}
	for _, found := range result.GetResponseRange().Kvs { // one at most
		if s.Busy = len(found.Value) < 9 || found.Value[8] != 0; !s.Busy {
			s.Row = rowstore.Row{Token: binary.BigEndian.Uint64(found.Value), Bytes: found.Value[9:]}
		}
	}
}

// textOf returns the bytes of a token, which begin a row's value. A zero is behind them.
func textOf(token uint64) string { return string(binary.BigEndian.AppendUint64(nil, token)) }

func now() time.Duration { return time.Duration(time.Now().UnixNano()) }

// leaseFor returns a lease that does not end before keep has passed. All rows share it: it takes a
// request an hour, and no row goes too early.
func (r *rows) leaseFor(ctx context.Context, keep time.Duration) (clientv3.LeaseID, error) {
	begin := time.Now()
	// Without Round the times are those of a clock that stands while the machine sleeps.
	if l := r.lease.Load(); keep == 0 {
		return clientv3.NoLease, nil
	} else if l != nil && min(l.until.Sub(begin), l.until.Round(0).Sub(begin.Round(0))) >= keep {
		return l.id, nil
	}
	grant, err := r.client.Grant(ctx, int64((time.Hour+2*keep)/time.Second))
	if err != nil {
		return 0, err
	}
	r.lease.Store(&lease{grant.ID, begin.Add(time.Duration(grant.TTL) * time.Second)})
	return grant.ID, nil
}

// explain returns an error as [rowstore.Rows] does. A wait may cure all except those of a request
// that is wrong or not allowed.
func explain(err error) error {
	code := status.Code(err)
	if failed := (rpctypes.EtcdError{}); errors.As(err, &failed) {
		code = failed.Code()
	}
	switch code {
	case codes.OK, codes.InvalidArgument, codes.OutOfRange, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return err
	}
	return fmt.Errorf("etcd: %w: %w", store.ErrUnavailable, err)
}
