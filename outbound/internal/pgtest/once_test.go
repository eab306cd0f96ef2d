package pgtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Replies are lost, and backends are ended, until many were: nothing is charged twice. An ending
// follows each ninth round trip, so that connections live for as many trips on any machine.
func TestStore_LostReplyIsNotChargedTwice(t *testing.T) {
	x := newTables(t, theServer(t))
	line := newProxy(t, x.server)
	line.set(faults{unheard: 0.15, swallowed: 0.003})
	stop := make(chan struct{})
	var ending sync.WaitGroup
	ending.Go(func() { // as an administrator would, again and again
		db := x.open(t, "", nil)
		for ended := 0; ; {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if _, trips, _ := line.counts(); trips >= ended+9 {
				ended = trips
				_, _ = db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim' ORDER BY random() LIMIT 1")
			}
		}
	})
	most := 100
	if long {
		most = 1000
	}
	var admitted atomic.Int64
	each(4, func(i int) {
		s := x.over(line.in(x.server).open(t, []string{"pgx", "postgres"}[i%2], map[string][]string{"application_name": {"victim"}}))
		each(8, func(j int) {
			for {
				if _, _, lost := line.counts(); lost >= most {
					return
				}
				r, err := s.Update(bg, "key", calls(1+j%2))
				if err != nil {
					t.Error(err)
				}
				admitted.Add(int64(len(r.Charges)))
			}
		})
	})
	close(stop)
	ending.Wait()
	_, trips, lost := line.counts()
	t.Logf("%d calls admitted in %d trips, of which %d were lost", admitted.Load(), trips, lost)
	require.GreaterOrEqual(t, lost, most)
	require.InDelta(t, float64(admitted.Load()), x.level(t, "key"), 0.5)
}

// A caller's context never reaches the driver, which would close the connection with it.
func TestStore_CancelledCallOpensNoConnection(t *testing.T) {
	x := newTables(t, theServer(t))
	line := newProxy(t, x.server)
	s := x.over(line.in(x.server).open(t, "", nil))
	_, err := s.Update(bg, "key", calls(1))
	require.NoError(t, err)
	line.set(faults{way: 2 * time.Millisecond})
	var admitted atomic.Int64
	each(20, func(int) {
		op := calls(1)
		for range 10 {
			ctx, cancel := context.WithTimeout(bg, time.Duration(rand.Int64N(int64(8*time.Millisecond))))
			op.Costs[0][0] = 1
			r, err := s.Update(ctx, "key", op)
			op.Costs[0][0] = 1000 // the caller's memory is its own again
			cancel()
			if err == nil {
				admitted.Add(int64(len(r.Charges)))
			}
		}
	})
	line.set(faults{})
	connections, _, _ := line.counts()
	require.LessOrEqual(t, connections, 6)
	require.Eventually(t, func() bool { return x.level(t, "key")-float64(1+admitted.Load()) < 60 }, patience, 50*time.Millisecond,
		"of 200 callers, most of what was booked for those who have gone comes back")
	require.GreaterOrEqual(t, x.level(t, "key"), float64(1+admitted.Load())-0.5)
}

// deadlocks counts the statements that the server has ended because of a deadlock. The store repeats
// them, so that nobody else sees them.
type deadlocks struct{ found, transactions atomic.Int64 }

// TraceQueryStart implements [pgx.QueryTracer].
func (d *deadlocks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (d *deadlocks) TraceQueryEnd(_ context.Context, _ *pgx.Conn, end pgx.TraceQueryEndData) {
	d.transactions.Add(1)
	var failed *pgconn.PgError
	if errors.As(end.Err, &failed) && failed.Code == "40P01" {
		d.found.Add(1)
	}
}

// Trips of many keys lock their rows in one order, whoever makes them. Those that make rows wait for
// each other.
func TestStore_HasNoDeadlock(t *testing.T) {
	x := newTables(t, theServer(t))
	config, err := pgx.ParseConfig(x.as(x.role(t, "deadlock_timeout = '1ms'")).url(nil))
	require.NoError(t, err)
	var count deadlocks
	config.Tracer = &count
	const workers, keys = 6, 32
	var stores []*rowstore.Store
	for range workers {
		db := stdlib.OpenDB(*config)
		db.SetMaxIdleConns(8)
		t.Cleanup(func() { _ = db.Close() })
		stores = append(stores, x.over(db))
	}
	most := int64(200)
	if long {
		most = 10_000
	}
	rounds := 0
	for ; count.transactions.Load() < most; rounds++ {
		each(workers*keys, func(i int) {
			if _, err := stores[i%workers].Update(bg, fmt.Sprint(rounds, " ", i/workers), calls(1)); err != nil {
				t.Error(err)
			}
		})
	}
	require.Zero(t, count.found.Load(), "of %d transactions", count.transactions.Load())
	for i := range keys {
		require.InDelta(t, workers, x.level(t, fmt.Sprint(rounds-1, " ", i)), 0.1)
	}
}

// Refusals, looks and reports that say nothing new write nothing.
func TestStore_RefusalWritesNothing(t *testing.T) {
	x := newTables(t, theServer(t))
	db := x.open(t, "", nil)
	db.SetMaxOpenConns(1)
	s := x.over(db)
	small := []store.Limit{{Name: "calls", Capacity: 3, Rate: 1e-5}}
	ask := func(op *store.Op) store.Reply {
		op.Limits, op.Base = small, store.Hash(small)
		r, err := s.Update(bg, "key", op)
		require.NoError(t, err)
		return r
	}
	for range 3 {
		require.Len(t, ask(calls(1)).Charges, 1)
	}
	version := func() (v string) {
		require.NoError(t, db.QueryRow("SELECT ctid || ' ' || xmin || ' ' || xmax FROM "+x.table()).Scan(&v))
		return v
	}
	before := version()
	for range 50 {
		require.True(t, ask(calls(1)).Refused)
		ask(&store.Op{})
		ask(&store.Op{Action: store.Book, Costs: []store.Units{{2}}, Wait: time.Second})
	}
	require.Equal(t, before, version(), "the row is the same tuple")
}

// A busy row leaves no bloat, although expires is indexed.
func TestStore_UpdatesAreHot(t *testing.T) {
	x := newTables(t, theServer(t))
	db := x.open(t, "", nil)
	s := x.over(db)
	n := 1000
	if long {
		n = 1_000_000
	}
	op := calls(1)
	op.Limits = []store.Limit{{Name: "calls", Capacity: 1e8, Rate: 1e6}}
	op.Base = store.Hash(op.Limits)
	start := time.Now()
	for range n {
		r, err := s.Update(bg, "key", op)
		require.NoError(t, err)
		require.Len(t, r.Charges, 1)
	}
	var all, hot float64
	require.Eventually(t, func() bool { // a backend tells its counts once a second at most
		_, err := db.Exec("SELECT pg_stat_clear_snapshot()")
		require.NoError(t, err)
		all = x.one(t, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = '"+x.table()+"'::regclass")
		hot = x.one(t, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = '"+x.table()+"'::regclass")
		return all >= float64(n-1)
	}, patience, 100*time.Millisecond)
	minutes := time.Since(start).Minutes() // in each of which expires changes once
	t.Logf("%v of %v updates are hot", hot, all)
	require.GreaterOrEqual(t, hot, all-3-2*minutes)
	t.Logf("%v bytes", x.one(t, "SELECT pg_table_size('"+x.table()+"')"))
	require.LessOrEqual(t, x.one(t, "SELECT pg_table_size('"+x.table()+"')"), 64.*1024)
}

// Expired rows go as new keys come, by the index.
func TestPrune_DeletesExpiredRows(t *testing.T) {
	x := newTables(t, theServer(t))
	x.exec(t, "INSERT INTO "+x.table()+" SELECT decode(md5(i::text), 'hex'), 1, 'x', now() + CASE WHEN i <= 60 THEN -1 ELSE 1 END * interval '1 hour' FROM generate_series(1, 2000) i")
	x.exec(t, "ANALYZE "+x.table())
	s := x.store(t)
	each(40, func(i int) {
		_, err := s.Update(bg, fmt.Sprint(i), calls(1))
		require.NoError(t, err)
	})
	require.Zero(t, x.one(t, "SELECT count(*) FROM "+x.table()+" WHERE expires < now()"))
	require.Equal(t, 1940.+40, x.one(t, "SELECT count(*) FROM "+x.table()))
	sweep := sweepOf(x.config)
	var plan string
	db := x.open(t, "", nil)
	rows, err := db.Query("EXPLAIN " + sweep)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		plan += line + "\n"
	}
	require.NoError(t, rows.Err())
	require.Contains(t, plan, "Index Cond: (expires < now())")
}

func TestStore_RowOutlivesItsProcesses(t *testing.T) {
	x := newTables(t, theServer(t))
	for _, durable := range []bool{false, true} {
		key := fmt.Sprint(durable)
		for range 3 {
			db, err := sql.Open("pgx", x.url(nil))
			require.NoError(t, err)
			_, err = x.over(db, func(c *pgstore.Config) { c.Durable = durable }).Update(bg, key, calls(1))
			require.NoError(t, err)
			require.NoError(t, db.Close())
		}
		require.InDelta(t, 3, x.level(t, key), 0.1)
	}
	hours := x.one(t, "SELECT extract(epoch FROM min(expires) - now()) / 3600 FROM "+x.table())
	require.InDelta(t, 2*3e4/3600, hours, 1, "3 units leak in 30 000 s, and the row stays for up to twice as long")
}
