package pgtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// deletes counts the rows that each DELETE has deleted.
type deletes struct{ most, all atomic.Int64 }

// TraceQueryStart implements [pgx.QueryTracer].
func (d *deletes) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (d *deletes) TraceQueryEnd(_ context.Context, _ *pgx.Conn, end pgx.TraceQueryEndData) {
	if n := end.CommandTag.RowsAffected(); end.CommandTag.Delete() {
		d.all.Add(n)
		for most := d.most.Load(); n > most && !d.most.CompareAndSwap(most, n); most = d.most.Load() {
		}
	}
}

// Prune deletes all rows that have expired, in short transactions, and no other row. Workers go on
// meanwhile, several Prunes share the work, and a row that a session has locked stays.
func TestPrune_DeletesExpiredRowsNextToRunningWorkers(t *testing.T) {
	x := newTables(t, theServer(t))
	const expired, alive, keys = 5_500, 300, 20
	s := x.store(t)
	each(keys, func(i int) {
		_, err := s.Update(bg, fmt.Sprint(i), calls(1))
		require.NoError(t, err)
	})
	x.exec(t, "INSERT INTO "+x.table()+" SELECT decode(md5(i::text), 'hex'), 1, 'x', now() + CASE WHEN i <= $1 THEN -1 ELSE 1 END * interval '1 hour'"+
		" FROM generate_series(1, $1::int + $2) i", expired, alive)
	x.exec(t, "INSERT INTO "+x.table()+" VALUES ('locked', 1, 'x', now() - interval '1 hour')")
	tx := x.lock(t, []byte("locked"))
	var told events
	busy := x.over(x.open(t, "", nil), told.observe)
	stop := make(chan struct{})
	var calling sync.WaitGroup
	for i := range keys {
		calling.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := busy.Update(bg, fmt.Sprint(i), calls(1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	config, err := pgx.ParseConfig(x.as(x.role(t)).url(nil))
	require.NoError(t, err)
	var count deletes
	config.Tracer = &count
	var deleted atomic.Int64
	each(3, func(int) {
		db := stdlib.OpenDB(*config)
		defer db.Close()
		n, err := pgstore.Prune(bg, db, x.config)
		if err != nil {
			t.Error(err)
		}
		deleted.Add(n)
	})
	close(stop)
	calling.Wait()
	require.EqualValues(t, expired, deleted.Load())
	require.EqualValues(t, expired, count.all.Load())
	require.LessOrEqual(t, count.most.Load(), int64(1_000), "rows of one transaction")
	require.Empty(t, told.of(store.EventDataLoss))
	require.NoError(t, tx.Rollback())
	db := x.open(t, "postgres", nil)
	n, err := pgstore.Prune(bg, db, x.config)
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "the row that was locked")
	require.Equal(t, float64(alive+keys), x.one(t, "SELECT count(*) FROM "+x.table()))
}

// A worker that still knows a key whose row was pruned goes on, and the key begins empty.
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
