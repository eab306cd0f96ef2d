package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"modernc.org/sqlite"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// rows are the rows of a table in a SQLite file: a [rowstore.Rows] that processes of one machine
// share.
type rows struct{ db *sql.DB }

// open opens the file, and makes it if there is none. Each transaction is the only one that
// writes, from its beginning on.
func open(file string) (*rows, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(5)&_pragma=synchronous(NORMAL)")
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err = db.Exec("PRAGMA journal_mode(WAL); CREATE TABLE IF NOT EXISTS buckets (key BLOB PRIMARY KEY, token INTEGER, state BLOB, expires INTEGER) WITHOUT ROWID")
		// If processes make the file at the same time, SQLite refuses all of them except one.
		if !errors.Is(explain(err), store.ErrUnavailable) || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &rows{db}, nil
}

// Swap implements [rowstore.Rows] in one transaction. While other processes write it tries again,
// until ctx is over: the pauses of SQLite's own timeout grow with the time that a process waits.
func (r *rows) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	for {
		err := r.transact(ctx, swaps)
		if !errors.Is(err, store.ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(rand.N(5 * time.Millisecond)):
		}
	}
}

// transact carries swaps out, or none of them.
func (r *rows) transact(ctx context.Context, swaps []rowstore.Swap) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return explain(err)
	}
	defer tx.Rollback()
	for i := range swaps {
		if err := swap(ctx, tx, &swaps[i]); err != nil {
			return explain(err)
		}
	}
	return explain(tx.Commit())
}

// swap carries one swap out.
func swap(ctx context.Context, tx *sql.Tx, s *rowstore.Swap) error {
	var token int64
	var state []byte
	err := tx.QueryRowContext(ctx, "SELECT token, state FROM buckets WHERE key = ?", s.Key).Scan(&token, &state)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	s.Row, s.Done = rowstore.Row{Token: uint64(token), Bytes: state}, false
	s.Clock, s.Own = time.Duration(time.Now().UnixNano()), true // SQLite has no clock of its own
	if s.New == nil || s.Row.Token != s.Old || !s.InTime() {
		return nil
	}
	if s.Old == 0 { // with a new row, those that have expired go
		if _, err := tx.ExecContext(ctx, "DELETE FROM buckets WHERE expires < ?", int64(s.Clock)); err != nil {
			return err
		}
	}
	_, err = tx.ExecContext(ctx, "REPLACE INTO buckets VALUES (?, ?, ?, ?)", s.Key, int64(s.Token), s.New, int64(s.Clock+s.Keep))
	s.Row, s.Done = rowstore.Row{Token: s.Token, Bytes: s.New}, err == nil
	return err
}

// explain returns an error as [rowstore.Rows] does: another process that has the file for long is
// an outage.
func explain(err error) error {
	var failed *sqlite.Error
	if errors.As(err, &failed) && failed.Code()&0xff == 5 { // SQLITE_BUSY
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return err
}
