package pgstore

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
)

// rows is a [rowstore.Locker]: the rows of the table.
type rows struct {
	db      *sql.DB
	durable bool
	soloSQL string // one that is there and, it seems, that no other process writes
	swapSQL string
	lockSQL string
	idle    string // after which the server ends a session that has a lock and does nothing
	update  string // the table, as SQL writes it
}

func newRows(db *sql.DB, c *Config) *rows {
	n := c.names()
	return &rows{
		db: db, durable: c.Durable, update: n.table,
		soloSQL: strings.ReplaceAll(soloSQL, "TABLE_NAME", n.table),
		swapSQL: "SELECT done, busy, token, state, clock FROM " + n.swap + "($1, $2, $3, $4, $5, $6, $7)",
		lockSQL: "SELECT token, state, clock FROM " + n.lock + "($1, $2, $3, $4)",
		idle:    milliseconds(c.Timeout / 2),
	}
}

// Swap implements [rowstore.Rows] with one statement for a row alone, and otherwise, or if that has
// not written it, with one call of the function. It uses a Conn because a DB sends a query again by
// itself if the connection was cut, and the store has to know that it was sent again.
func (r *rows) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return r.explain(err)
	}
	defer conn.Close()
	if len(swaps) == 1 && swaps[0].Alone && swaps[0].Old != 0 && swaps[0].New != nil {
		if err := r.solo(ctx, conn, &swaps[0]); err != nil || swaps[0].Done {
			return r.failed(ctx, conn, err)
		}
	}
	var keys, olds, tokens, times, states, keeps array
	for i := range swaps {
		s := &swaps[i]
		keys.bytes(s.Key)
		olds.int(int64(s.Old))
		tokens.int(int64(s.Token))
		times.int(s.Time.Microseconds())
		states.bytes(s.New)
		keeps.int(s.Keep.Microseconds())
	}
	found, err := conn.QueryContext(ctx, r.swapSQL, keys.text(), olds.text(), tokens.text(), times.text(), states.text(), keeps.text(), r.durable)
	if err != nil {
		return r.failed(ctx, conn, err)
	}
	defer found.Close()
	n := 0
	for ; n < len(swaps) && found.Next(); n++ {
		s := &swaps[n]
		var token, clock int64
		if err := found.Scan(&s.Done, &s.Busy, &token, &s.Row.Bytes, &clock); err != nil {
			return r.explain(err)
		}
		s.Row.Token, s.Clock = uint64(token), time.Duration(clock)*time.Microsecond
	}
	if err := found.Err(); err != nil {
		return r.explain(err)
	}
	if n < len(swaps) {
		return fmt.Errorf("pgstore: the function has returned %d rows, and not %d", n, len(swaps))
	}
	return r.explain(found.Close())
}

// solo makes one swap with one statement, if it can. It asks the driver without the DB, which would
// start a goroutine that waits for ctx, as the driver does already: a tenth of the time.
func (r *rows) solo(ctx context.Context, conn *sql.Conn, s *rowstore.Swap) error {
	values := [...]driver.Value{s.Key, int64(s.Old), int64(s.Token), s.Time.Microseconds(), s.New, s.Keep.Microseconds(), r.durable}
	var args [len(values)]driver.NamedValue
	for i, v := range values {
		args[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	err := conn.Raw(func(c any) error {
		q, ok := c.(driver.QueryerContext)
		if !ok {
			return driver.ErrSkip
		}
		found, err := q.QueryContext(ctx, r.soloSQL, args[:])
		if err != nil {
			return err
		}
		var row [1]driver.Value
		var clock sql.Null[int64]
		if err = found.Next(row[:]); err == nil {
			err = clock.Scan(row[0])
		}
		if err = cmp.Or(err, found.Close()); err == nil {
			s.Done, s.Clock, s.Row.Token = true, time.Duration(clock.V)*time.Microsecond, s.Token
		}
		return err
	})
	if state := stateOf(err); state == lockNotAvailable || state == "40001" || err == io.EOF || err == driver.ErrSkip {
		return nil // nothing was written
	}
	return err
}

// failed explains the error of a query that ends the use of a connection.
func (r *rows) failed(ctx context.Context, conn *sql.Conn, err error) error {
	if err == nil {
		return nil
	}
	if _ = conn.Close(); errors.Is(err, driver.ErrBadConn) {
		// If the server was restarted, the idle connections are cut too. Ping opens one for the
		// next swap.
		_ = r.db.PingContext(ctx)
	}
	return r.explain(err)
}

// Lock implements [rowstore.Locker] with a transaction of three round trips: to begin it, to lock
// the row, and to write it and commit. Whatever the role's default is, the transaction sees what
// the one before it has written.
func (r *rows) Lock(ctx context.Context, s *rowstore.Swap, compute func()) error {
	patience := time.Second / 2
	if until, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(until)/2)
	}
	if patience < time.Millisecond { // so it is unknown whether the row is locked
		return r.explain(context.DeadlineExceeded)
	}
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return r.explain(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		discard(conn)
		return r.explain(err)
	}
	var token, clock int64
	err = conn.QueryRowContext(ctx, r.lockSQL, s.Key, milliseconds(patience), r.idle, r.durable).Scan(&token, &s.Row.Bytes, &clock)
	end := "ROLLBACK"
	switch {
	case err == nil:
		s.Row.Token, s.Clock = uint64(token), time.Duration(clock)*time.Microsecond
		if token == 0 {
			break
		}
		if compute(); s.New != nil {
			end = r.writeSQL(s) + "; COMMIT"
		}
	case stateOf(err) == lockNotAvailable:
		s.Busy = true
	default:
		discard(conn)
		return r.explain(err)
	}
	if _, err := conn.ExecContext(ctx, end); err != nil {
		discard(conn)
		return r.explain(err)
	}
	s.Done = s.New != nil
	return nil
}

// writeSQL returns the SQL that writes a row which is locked. It has no parameters, so that every
// driver sends it, and the COMMIT after it, in one trip.
func (r *rows) writeSQL(s *rowstore.Swap) string {
	return fmt.Sprintf("UPDATE %s SET token = %d, state = decode('%x', 'hex'), expires = CASE WHEN expires < clock_timestamp() + %[4]d * interval '1 microsecond'"+
		" THEN clock_timestamp() + %[4]d * interval '2 microseconds' ELSE expires END WHERE key = decode('%[5]x', 'hex')",
		r.update, int64(s.Token), s.New, s.Keep.Microseconds(), s.Key)
}

// milliseconds writes a time as a setting of PostgreSQL, an int32. 0 would be no limit.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(min(max(1, d.Milliseconds()), math.MaxInt32), 10)
}

// discard closes a connection that may be in a transaction.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
}

// array has the elements of a PostgreSQL array, whose text every driver can send.
type array []string

func (a *array) int(x int64) { *a = append(*a, strconv.FormatInt(x, 10)) }

func (a *array) bytes(x []byte) {
	text := "NULL"
	if x != nil {
		text = `"\\x` + hex.EncodeToString(x) + `"`
	}
	*a = append(*a, text)
}

func (a array) text() string { return "{" + strings.Join(a, ",") + "}" }
