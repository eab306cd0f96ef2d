package pgtest

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
)

// A process alone with a row sends one UPDATE for each call. While another process writes the row
// between its calls, it sends no UPDATE that must fail, but the function only.
func TestSolo_OneStatementForACallAlone(t *testing.T) {
	x := newTables(t, theServer(t))
	var count trace
	s, other := x.over(x.traced(t, &count)), x.store(t)
	steps := 0
	asks := func(n, updates, all int64, before func()) {
		t.Helper()
		steps++
		wasUpdates, was := count.updates.Load(), count.queries.Load()
		for range n {
			before()
			require.NoError(t, call(s, "key"))
		}
		require.Equal(t, [2]int64{updates, all}, [2]int64{count.updates.Load() - wasUpdates, count.queries.Load() - was}, "updates and statements of step %d", steps)
	}
	alone, beside := func() {}, func() { require.NoError(t, call(other, "key")) }
	asks(1, 0, 2, alone) // a look, and a new row
	asks(20, 20, 20, alone)
	asks(1, 1, 3, beside)   // the UPDATE, the function that finds the row written, and the one that writes it
	asks(20, 0, 40, beside) // all by the function
	asks(1, 0, 1, alone)
	asks(20, 20, 20, alone)
	require.InDelta(t, 63+21, x.level(t, "key"), 0.1)
}

// Drivers may prepare statements, describe them, or send texts. The statement has the function's settings, and leaves
// none to the next transaction. Without the function no other statement can write the row.
func TestSolo_ByEachDriverAndMode(t *testing.T) {
	modes := map[string][]string{"pgx": {"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"}, "postgres": {"no", "yes"}}
	names := map[string]string{"pgx": "default_query_exec_mode", "postgres": "binary_parameters"}
	for driver, modes := range modes {
		for i, mode := range modes {
			t.Run(driver+" "+mode, func(t *testing.T) {
				x := newTables(t, theServer(t))
				db := x.open(t, driver, url.Values{names[driver]: {mode}})
				db.SetMaxOpenConns(1)
				more, commit := func(*pgstore.Config) {}, "off"
				if i%2 > 0 {
					more, commit = durable, "on"
				}
				s := x.over(db, more)
				require.NoError(t, call(s, "key"))
				in := x.config.Schema
				x.exec(t, "CREATE FUNCTION "+in+".judge() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"+
					" IF current_setting('synchronous_commit') <> '"+commit+"' OR current_setting('lock_timeout') <> '1ms' THEN RAISE 'no such settings'; END IF; RETURN new; END $$")
				x.exec(t, "CREATE TRIGGER judge BEFORE UPDATE ON "+x.table()+" FOR EACH ROW EXECUTE FUNCTION "+in+".judge()")
				x.exec(t, "ALTER FUNCTION "+in+".dripfeed_buckets_swap_1 RENAME TO gone")
				for range 10 {
					require.NoError(t, call(s, "key"))
				}
				var left string
				require.NoError(t, db.QueryRow("SELECT current_setting('synchronous_commit') || ' ' || current_setting('lock_timeout')").Scan(&left))
				require.Equal(t, "on 0", left)
				x.exec(t, "ALTER FUNCTION "+in+".gone RENAME TO dripfeed_buckets_swap_1")
				require.InDelta(t, 11, x.level(t, "key"), 0.1)
			})
		}
	}
}

// The server's clock steps, so that a process estimates it wrongly. A call counts by the clock all the same.
func TestSolo_ServersClockCounts(t *testing.T) {
	x := newTables(t, theServer(t))
	in := x.config.Schema
	x.exec(t, "CREATE TABLE "+in+".skew AS SELECT interval '0' AS d")
	x.exec(t, "CREATE FUNCTION "+in+".clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.clock_timestamp() + d FROM "+in+".skew'")
	role := x.role(t, "search_path = "+in+", pg_catalog")
	x.exec(t, "GRANT SELECT ON "+in+".skew TO "+role.Username())
	s := x.over(x.as(role).open(t, "", nil))
	for _, skew := range []float64{0, 0, 3, 4.5, 1, -3} {
		x.exec(t, "UPDATE "+in+".skew SET d = $1 * interval '1 second'", skew)
		clock := func() float64 { return x.one(t, "SELECT extract(epoch FROM clock_timestamp())") + skew }
		before := clock()
		r, err := s.Update(bg, "key", calls(1))
		require.NoError(t, err)
		require.Len(t, r.Charges, 1)
		at := r.State.At.Seconds()
		require.GreaterOrEqual(t, at, before-1, skew)
		require.LessOrEqual(t, at, clock(), skew)
	}
}
