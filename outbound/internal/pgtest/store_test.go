package pgtest

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Replies are lost, and backends are ended, until many were: nothing is charged twice. An ending
// follows each ninth round trip, so that connections live for as many replies on any machine, and
// each second, in which all calls may wait for a reply that was lost.
func TestStore_LostReplyIsNotChargedTwice(t *testing.T) {
	x := newTables(t, theServer(t))
	line := newProxy(t, x.server)
	line.set(faults{lost: 0.15, swallowed: 0.003})
	db, ended, last := x.open(t, "", nil), 0, time.Now()
	stop := busy(1, func(int) { // as an administrator would, again and again
		time.Sleep(time.Millisecond)
		if _, replies, _ := line.counts(); replies >= ended+9 || time.Since(last) > time.Second {
			ended, last = replies, time.Now()
			_, _ = db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim' ORDER BY random() LIMIT 1")
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
	stop()
	_, replies, lost := line.counts()
	t.Logf("%d calls admitted in %d replies, of which %d were lost", admitted.Load(), replies, lost)
	require.GreaterOrEqual(t, lost, most)
	require.InDelta(t, float64(admitted.Load()), x.level(t, "key"), 0.5)
}

// A caller's context never reaches the driver, which would close the connection with it.
func TestStore_CancelledCallOpensNoConnection(t *testing.T) {
	x := newTables(t, theServer(t))
	line := newProxy(t, x.server)
	s := x.over(line.in(x.server).open(t, "", nil))
	require.NoError(t, call(s, "key"))
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

// Trips of many keys lock their rows in one order, whoever makes them. Those that make rows wait for
// each other.
func TestStore_HasNoDeadlock(t *testing.T) {
	x := newTables(t, theServer(t))
	var count trace
	const workers, keys = 6, 32
	var stores []*rowstore.Store
	for range workers {
		stores = append(stores, x.over(x.traced(t, &count, "deadlock_timeout = '1ms'")))
	}
	most := int64(200)
	if long {
		most = 10_000
	}
	rounds := 0
	for ; count.queries.Load() < most; rounds++ {
		each(workers*keys, func(i int) {
			require.NoError(t, call(stores[i%workers], fmt.Sprint(rounds, " ", i/workers)))
		})
	}
	require.Zero(t, count.deadlocks.Load(), "of %d statements", count.queries.Load())
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
		r, err := s.Update(bg, "key", op)
		require.NoError(t, err)
		return r
	}
	require.Len(t, ask(callsBy(small, 3)).Charges, 3)
	version := func() (v string) {
		require.NoError(t, db.QueryRow("SELECT ctid || ' ' || xmin || ' ' || xmax FROM "+x.table()).Scan(&v))
		return v
	}
	before := version()
	for range 50 {
		require.True(t, ask(callsBy(small, 1)).Refused)
		ask(callsBy(small, 0))
		waits := callsBy(small, 2)
		waits.Wait = time.Second
		ask(waits)
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
	op := callsBy([]store.Limit{{Name: "calls", Capacity: 1e8, Rate: 1e6}}, 1)
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

// A row is kept after the processes that wrote it, for as long as its state matters.
func TestStore_RowOutlivesItsProcesses(t *testing.T) {
	x := newTables(t, theServer(t))
	for _, durable := range []bool{false, true} {
		key := fmt.Sprint(durable)
		for range 3 {
			x.with(t, func(db *sql.DB) error {
				return call(x.over(db, func(c *pgstore.Config) { c.Durable = durable }), key)
			})
		}
		require.InDelta(t, 3, x.level(t, key), 0.1)
	}
	hours := x.one(t, "SELECT extract(epoch FROM min(expires) - now()) / 3600 FROM "+x.table())
	require.InDelta(t, 2*3e4/3600, hours, 1, "3 units leak in 30 000 s, and the row stays for up to twice as long")
}

// A server that starts again has cut the connections that the DB has idle. The next call finds that out, and is no
// outage.
func TestStore_ConnectionsCutWhileIdle(t *testing.T) {
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			x := newTables(t, theServer(t))
			who := x.role(t)
			db := x.as(who).open(t, driver, nil)
			var seen events
			s := x.over(db, seen.observe)
			for range 3 {
				require.NoError(t, call(s, "key"))
				var conns [6]*sql.Conn
				for i := range conns {
					var err error
					conns[i], err = db.Conn(bg)
					require.NoError(t, err)
				}
				for _, c := range conns {
					require.NoError(t, c.Close())
				}
				x.exec(t, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = '"+who.Username()+"'")
				require.NoError(t, call(s, "key"))
			}
			require.Empty(t, seen.of(store.EventDown))
			require.InDelta(t, 6, x.level(t, "key"), 0.1)
		})
	}
}
