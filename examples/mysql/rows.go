package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// rows are the rows of a table in MySQL 8 or MariaDB 10.6: a [rowstore.Locker].
type rows struct{ db *sql.DB }

// open opens a database with Params of its own, and makes the table if there is none. A transaction
// whose process stops is ended after wait_timeout, so idle connections are closed before.
func open(ctx context.Context, c *mysql.Config) (*rows, error) {
	c.InterpolateParams = true // otherwise each statement takes three round trips
	c.Params = map[string]string{"time_zone": "'+00:00'", "innodb_lock_wait_timeout": "1", "wait_timeout": "5"}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(6)
	db.SetConnMaxIdleTime(3 * time.Second)
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS buckets (name VARBINARY(512) PRIMARY KEY, token BIGINT NOT NULL, state MEDIUMBLOB NOT NULL, expires BIGINT NOT NULL, KEY (expires)) ENGINE=InnoDB")
	return &rows{db}, err
}

// read reads a row, and the clock after it. SYSDATE is the time after the wait for a lock, and NOW
// the time before.
func read(ctx context.Context, tx *sql.Tx, s *rowstore.Swap, lock string) error {
	var token sql.NullInt64
	var clock int64
	err := tx.QueryRowContext(ctx, "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), b.token, b.state FROM (SELECT 1) one LEFT JOIN buckets b ON b.name = ? "+lock, s.Key).Scan(&clock, &token, &s.Row.Bytes)
	s.Clock, s.Row.Token = time.Duration(clock)*time.Microsecond, uint64(token.Int64)
	return err
}

// write writes a row that is locked, or makes one.
func write(ctx context.Context, tx *sql.Tx, s *rowstore.Swap) error {
	query := "UPDATE buckets SET token = ?, state = ?, expires = ? WHERE name = ?"
	if s.Row.Token == 0 {
		query = "INSERT INTO buckets (token, state, expires, name) VALUES (?, ?, ?, ?)"
	}
	_, err := tx.ExecContext(ctx, query, int64(s.Token), s.New, int64(s.Clock+s.Keep), s.Key)
	return err
}

// committed makes a transaction read what is committed. It locks rows, and no gaps.
var committed = &sql.TxOptions{Isolation: sql.LevelReadCommitted}

// Swap implements [rowstore.Rows] in one transaction.
func (r *rows) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	if slices.ContainsFunc(swaps, func(s rowstore.Swap) bool { return s.New != nil && s.Old == 0 }) {
		r.sweep(ctx)
	}
	tx, err := r.db.BeginTx(ctx, committed)
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

// sweep deletes a row that has expired, with each new one. A DELETE by expires would lock gaps of
// that index before the row, and other statements lock the row first: a deadlock.
func (r *rows) sweep(ctx context.Context) {
	var name []byte
	if r.db.QueryRowContext(ctx, "SELECT name FROM buckets WHERE expires < UNIX_TIMESTAMP() * 1000000000 ORDER BY expires LIMIT 1").Scan(&name) == nil {
		_, _ = r.db.ExecContext(ctx, "DELETE FROM buckets WHERE name = ? AND expires < UNIX_TIMESTAMP() * 1000000000", name)
	}
}

// swap carries one swap out.
func swap(ctx context.Context, tx *sql.Tx, s *rowstore.Swap) error {
	if s.New == nil {
		return read(ctx, tx, s, "")
	}
	err := read(ctx, tx, s, "FOR UPDATE NOWAIT")
	if err == nil && s.Row.Token == s.Old && s.InTime() {
		err = write(ctx, tx, s)
		s.Done = err == nil
	}
	switch s.Busy = is(err, locked...); {
	case s.Busy, is(err, 1062): // another process has just made the row
		return read(ctx, tx, s, "")
	case s.Done:
		s.Row = rowstore.Row{Token: s.Token, Bytes: s.New}
	}
	return err
}

// Lock implements [rowstore.Locker].
func (r *rows) Lock(ctx context.Context, s *rowstore.Swap, compute func()) error {
	tx, err := r.db.BeginTx(ctx, committed)
	if err != nil {
		return explain(err)
	}
	defer tx.Rollback()
	until, _ := ctx.Deadline()
	patience, cancel := context.WithTimeout(ctx, time.Until(until)/2)
	defer cancel()
	err = read(patience, tx, s, "FOR UPDATE")
	if s.Busy = is(err, locked...) || patience.Err() != nil && ctx.Err() == nil; s.Busy || err != nil || s.Row.Token == 0 {
		if s.Busy {
			return nil
		}
		return explain(err)
	}
	if compute(); s.New == nil {
		return nil
	}
	if err = write(ctx, tx, s); err == nil {
		err = tx.Commit()
	}
	s.Done = err == nil
	return explain(err)
}

// locked are the errors of a row that another transaction has: MariaDB's and MySQL's.
var locked = []uint16{1205, 3572}

// passing are the errors that a wait may cure: a deadlock, too many connections, a server that
// shuts down, only reads, or is full, and a statement that was ended.
var passing = []uint16{1213, 1040, 1203, 1226, 1053, 1290, 1792, 1836, 1021, 1114, 1317, 1927, 1969, 3024}

// is reports whether an error has one of these numbers.
func is(err error, numbers ...uint16) bool {
	var failed *mysql.MySQLError
	return errors.As(err, &failed) && slices.Contains(numbers, failed.Number)
}

// explain returns an error as [rowstore.Rows] does. Without a number it is one of the connection.
func explain(err error) error {
	if err == nil || errors.As(err, new(*mysql.MySQLError)) && !is(err, passing...) && !is(err, locked...) {
		return err
	}
	return fmt.Errorf("mysql: %w: %w", store.ErrUnavailable, err)
}
