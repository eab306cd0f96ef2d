package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// rows are the keys of a bucket in NATS 2.9 or later: a [rowstore.Rows].
type rows struct {
	conn *nats.Conn
	kv   jetstream.KeyValue
}

// bucket is the bucket's name in NATS.
const bucket = "dripfeed"

// open connects to a server, and makes the bucket if there is none.
func open(ctx context.Context, url string) (*rows, error) {
	conn, err := nats.Connect(url,
		nats.MaxReconnects(-1), // otherwise the client gives up after two minutes
		nats.ReconnectWait(100*time.Millisecond),
		nats.ReconnectBufSize(-1),         // otherwise what is sent in an outage goes out after it
		nats.PingInterval(10*time.Second)) // otherwise a server that hangs is left after six minutes
	if err != nil {
		return nil, err
	}
	r := &rows{conn: conn}
	js, err := jetstream.New(conn)
	if err == nil {
		// As CreateKeyValue does it, except for AllowDirect: that lets replicas answer, which may be
		// behind. A TTL, MaxAge, must be longer than any limit takes to drain.
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"}, MaxMsgsPerSubject: 1,
			Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true,
		})
	}
	if err == nil {
		r.kv, err = js.KeyValue(ctx, bucket)
	}
	if err != nil {
		conn.Close()
		return nil, explain(err)
	}
	return r, nil
}

// Swap implements [rowstore.Rows]. NATS has no requests of several keys, so each has its own, at
// the same time.
func (r *rows) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	var all sync.WaitGroup
	failed := make([]error, len(swaps))
	for i := range swaps {
		all.Go(func() { failed[i] = r.swap(ctx, &swaps[i]) })
	}
	all.Wait()
	return explain(cmp.Or(failed...))
}

// swap carries one swap out: it reads the row and writes it, if no other process has written it
// since.
func (r *rows) swap(ctx context.Context, s *rowstore.Swap) error {
	s.Done = false
	key := base64.RawURLEncoding.EncodeToString(s.Key)
	revision, err := r.read(ctx, key, s)
	if err != nil || s.New == nil || s.Row.Token != s.Old || !s.InTime() {
		return err
	}
	value := append(binary.BigEndian.AppendUint64(nil, s.Token), s.New...)
	if revision == 0 { // Create also replaces the marker of a key that was deleted
		_, err = r.kv.Create(ctx, key, value)
	} else {
		_, err = r.kv.Update(ctx, key, value, revision)
	}
	switch code := codeOf(err).ErrorCode; {
	case err == nil:
		s.Row, s.Done = rowstore.Row{Token: s.Token, Bytes: s.New}, true
	case code == jetstream.JSErrCodeStreamWrongLastSequence, code == jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		_, err = r.read(ctx, key, s) // another process was first
	}
	return err
}

// read reads a row and the clock, and returns the row's revision, or 0. NATS has no clock to ask
// for.
func (r *rows) read(ctx context.Context, key string, s *rowstore.Swap) (revision uint64, err error) {
	entry, err := r.kv.Get(ctx, key)
	s.Row = rowstore.Row{}
	s.Clock, s.Own = time.Duration(time.Now().UnixNano()), true
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	value := entry.Value()
	if len(value) < 8 { // it is another program's: the store takes it for corrupt
		value = make([]byte, 8)
	}
	s.Row = rowstore.Row{Token: max(1, binary.BigEndian.Uint64(value)), Bytes: value[8:]}
	return entry.Revision(), nil
}

// codeOf returns the server's error, or a zero one.
func codeOf(err error) jetstream.APIError {
	if failed := new(jetstream.APIError); errors.As(err, &failed) {
		return *failed
	}
	return jetstream.APIError{}
}

// explain returns an error as [rowstore.Rows] does. A wait may cure those of the connection, and
// those of a server that has no leader or is full.
func explain(err error) error {
	if code := codeOf(err).Code; err == nil || code != 0 && code < 500 || errors.Is(err, nats.ErrMaxPayload) {
		return err
	}
	return fmt.Errorf("natskv: %w: %w", store.ErrUnavailable, err)
}
