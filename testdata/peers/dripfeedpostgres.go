package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// dripfeedPostgres is the subject with its buckets in PostgreSQL.
func dripfeedPostgres() contender {
	return contender{
		name: subject,
		rows: func(db *sql.DB) (func(string) bool, error) {
			err := pgstore.Migrate(context.Background(), db, pgstore.Config{})
			return bucketsOf(pgstore.New(db, pgstore.Config{Timeout: patience}), endlessShared), err
		},
	}
}

// bucketsOf returns the decision per key of a worker of its own.
func bucketsOf(store store.Store, limits ...outbound.Limit) func(key string) bool {
	k := &outbound.Keyed[string]{
		New: func(key string) (outbound.Limiter, error) { return outbound.NewSharedBucket(store, key, limits...) },
	}
	ctx := context.Background()
	return func(key string) bool {
		permit, err := k.Acquire(ctx, key, one)
		if err != nil {
			return false
		}
		permit.Done()
		return true
	}
}

// rowLock is what a store is that locks its row in a transaction and computes: all that dripfeed
// knows, but charged twice if a reply is lost.
func rowLock() contender {
	return contender{
		name: "a row lock",
		peer: true,
		rows: func(db *sql.DB) (func(string) bool, error) {
			_, err := db.Exec("CREATE TABLE buckets (key text PRIMARY KEY, state bytea NOT NULL) WITH (fillfactor = 70)")
			return bucketsOf(lockStore{db}, endlessShared), err
		},
	}
}

// lockStore is a [store.Store] of rows that it locks.
type lockStore struct{ db *sql.DB }

func (s lockStore) Update(ctx context.Context, key string, op *store.Op) (r store.Reply, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return r, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	var state []byte
	var clock int64
	var bucket store.Stored
	err = tx.QueryRow("SELECT state FROM buckets WHERE key = $1 FOR UPDATE", key).Scan(&state)
	if err == nil {
		err = bucket.UnmarshalBinary(state)
	} else if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	if err == nil {
		err = tx.QueryRow("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Scan(&clock)
	}
	if err != nil {
		return r, err
	}
	if r = op.Apply(&bucket, time.Duration(clock)*time.Microsecond); !r.Changed {
		return r, nil
	}
	state, _ = bucket.AppendBinary(nil) // never fails
	if _, err = tx.Exec("INSERT INTO buckets VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET state = $2", key, state); err != nil {
		return r, err
	}
	return r, tx.Commit()
}
