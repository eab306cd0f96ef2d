package pgstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// cut is a driver of a server that cuts each connection in place of a reply. It counts queries and
// connections.
type cut struct {
	driver.Conn
	asked, open int
}

func (c *cut) Connect(context.Context) (driver.Conn, error) { c.open++; return c, nil }
func (c *cut) Driver() driver.Driver                        { return nil }
func (c *cut) Close() error                                 { c.open--; return nil }

func (c *cut) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	c.asked++
	return nil, driver.ErrBadConn // as lib/pq does, although the server may have carried the query out
}

// A swap is sent once if its connection was cut: the store has to know how often it was sent.
func TestSwap_IsSentOnceIfItsConnectionWasCut(t *testing.T) {
	server := new(cut)
	db := sql.OpenDB(server)
	defer db.Close()
	rows := newRows(db, &Config{})
	require.ErrorIs(t, rows.Swap(context.Background(), []rowstore.Swap{{Key: []byte("key")}}), store.ErrUnavailable)
	require.Equal(t, 1, server.asked)
	require.Equal(t, 1, server.open, "a connection for the next swap")
	require.Zero(t, db.Stats().InUse)
}

// bare is a driver that can only prepare statements, and fails to. It notes which.
type bare struct {
	cut
	texts []string
}

func (b *bare) Connect(context.Context) (driver.Conn, error) {
	return struct{ driver.Conn }{b}, nil
}

func (b *bare) Prepare(text string) (driver.Stmt, error) {
	b.texts = append(b.texts, text)
	return nil, driver.ErrBadConn
}

// A driver that cannot be asked without the DB is asked for the function.
func TestSwap_ByADriverThatOnlyPrepares(t *testing.T) {
	server := new(bare)
	db := sql.OpenDB(server)
	defer db.Close()
	rows := newRows(db, &Config{})
	s := rowstore.Swap{Key: []byte("key"), Old: 1, New: []byte("new"), Token: 3, Alone: true}
	require.ErrorIs(t, rows.Swap(context.Background(), []rowstore.Swap{s}), store.ErrUnavailable)
	require.Equal(t, []string{rows.swapSQL}, server.texts)
}

// A Lock without time left asks nothing, and does not report the row as locked.
func TestLock_WithoutTimeLeftSendsNothing(t *testing.T) {
	server := new(cut)
	db := sql.OpenDB(server)
	defer db.Close()
	ctx, cancel := context.WithDeadline(context.Background(), time.Now())
	defer cancel()
	s := rowstore.Swap{Key: []byte("key")}
	err := newRows(db, &Config{}).Lock(ctx, &s, nil)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, s.Busy)
	require.Zero(t, server.open)
}
