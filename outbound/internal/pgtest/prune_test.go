package pgtest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Prune deletes all rows that have expired, in short transactions, and no other row. Processes
// call meanwhile, several Prunes share the work, and a row that a session has locked stays.
func TestPrune_DeletesExpiredRowsNextToRunningWorkers(t *testing.T) {
	x := newTables(t, theServer(t))
	const expired, alive, keys = 5_500, 300, 20
	s := x.store(t)
	each(keys, func(i int) { require.NoError(t, call(s, fmt.Sprint(i))) })
	x.exec(t, "INSERT INTO "+x.table()+" SELECT decode(md5(i::text), 'hex'), 1, 'x', now() + CASE WHEN i <= $1 THEN -1 ELSE 1 END * interval '1 hour'"+
		" FROM generate_series(1, $1::int + $2) i", expired, alive)
	x.exec(t, "INSERT INTO "+x.table()+" VALUES ('locked', 1, 'x', now() - interval '1 hour')")
	tx := x.lock(t, []byte("locked"))
	var seen events
	running := x.store(t, seen.observe)
	stop := busy(keys, func(i int) { require.NoError(t, call(running, fmt.Sprint(i))) })
	var count trace
	var deleted atomic.Int64
	each(3, func(int) {
		n, err := pgstore.Prune(bg, x.traced(t, &count), x.config)
		require.NoError(t, err)
		deleted.Add(n)
	})
	stop()
	require.EqualValues(t, expired, deleted.Load())
	require.EqualValues(t, expired, count.deleted.Load())
	require.LessOrEqual(t, count.most.Load(), int64(1_000), "rows of one transaction")
	require.Empty(t, seen.of(store.EventDataLoss))
	require.NoError(t, tx.Rollback())
	db := x.open(t, "postgres", nil)
	n, err := pgstore.Prune(bg, db, x.config)
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "the row that was locked")
	require.Equal(t, float64(alive+keys), x.one(t, "SELECT count(*) FROM "+x.table()))
}

// Expired rows go as new keys come, by the index.
func TestPrune_NewKeysDeleteExpiredRows(t *testing.T) {
	x := newTables(t, theServer(t))
	x.exec(t, "INSERT INTO "+x.table()+" SELECT decode(md5(i::text), 'hex'), 1, 'x', now() + CASE WHEN i <= 60 THEN -1 ELSE 1 END * interval '1 hour' FROM generate_series(1, 2000) i")
	x.exec(t, "ANALYZE "+x.table())
	s := x.store(t)
	each(40, func(i int) { require.NoError(t, call(s, fmt.Sprint(i))) })
	require.Zero(t, x.one(t, "SELECT count(*) FROM "+x.table()+" WHERE expires < now()"))
	require.Equal(t, 1940.+40, x.one(t, "SELECT count(*) FROM "+x.table()))
	_, sweep, _ := strings.Cut(x.config.SQL(), "WHERE key IN ") // the query that finds them
	sweep, _, _ = strings.Cut(sweep, ";\n")
	rows, err := x.open(t, "", nil).Query("EXPLAIN " + strings.Trim(strings.TrimSpace(sweep), "()"))
	require.NoError(t, err)
	defer rows.Close()
	var plan string
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		plan += line + "\n"
	}
	require.NoError(t, rows.Err())
	require.Contains(t, plan, "Index Cond: (expires < now())")
}

// A process that still knows a key whose row was pruned goes on, and the key begins empty.
func TestPrune_KeyBeginsEmptyAfterwards(t *testing.T) {
	x := newTables(t, theServer(t))
	s := x.store(t)
	for range 3 {
		r, err := s.Update(bg, "key", calls(1))
		require.NoError(t, err)
		require.InDelta(t, 1, r.State.Level[0], 0.01)
		x.exec(t, "UPDATE "+x.table()+" SET expires = now() - interval '1 second'")
		n, err := pgstore.Prune(bg, x.open(t, "", nil), x.config)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	}
}

// Prune fails with what an operator needs to know.
func TestPrune_Fails(t *testing.T) {
	x := newTables(t, theServer(t))
	_, err := pgstore.Prune(bg, nil, x.config)
	require.ErrorContains(t, err, "nil argument")
	other := x.config
	other.Table = "other"
	_, err = pgstore.Prune(bg, x.open(t, "", nil), other)
	require.ErrorContains(t, err, "Migrate")
	ctx, cancel := context.WithCancel(bg)
	cancel()
	_, err = pgstore.Prune(ctx, x.open(t, "", nil), x.config)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, store.ErrUnavailable)
	dead := &server{host: "127.0.0.1:1", user: x.user}
	_, err = pgstore.Prune(bg, dead.open(t, "", nil), x.config)
	require.ErrorIs(t, err, store.ErrUnavailable)
}
