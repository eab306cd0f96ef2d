package pgtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A person locks a row by hand, or makes one as in a restore of the table, and leaves the
// transaction open. That delays the row's own key only.
func TestLock_DelaysItsOwnKeyOnly(t *testing.T) {
	for name, c := range map[string]struct {
		sql string
		was float64 // calls of the key before
	}{
		"a row":     {"SELECT FROM %s WHERE key = $1 FOR UPDATE", 1},
		"a new row": {"INSERT INTO %s VALUES ($1, 1, 'x', now())", 0},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTables(t, theServer(t))
			var seen events
			s := x.store(t, short, seen.observe)
			const keys = 40
			each(keys, func(i int) { require.NoError(t, call(s, fmt.Sprint(i))) })
			if c.was > 0 {
				require.NoError(t, call(s, "locked"))
			}
			tx := x.begin(t, fmt.Sprintf(c.sql, x.table()), s.Key("locked"))
			stuck := make(chan error, 1)
			go func() { stuck <- call(s, "locked") }()
			for rounds := 0; ; rounds++ {
				each(keys, func(i int) { require.NoError(t, call(s, fmt.Sprint(i))) })
				select {
				case err := <-stuck:
					require.Greater(t, rounds, 1)
					require.ErrorContains(t, err, "keeps the row locked")
					require.NotErrorIs(t, err, store.ErrUnavailable)
				default:
					continue
				}
				break
			}
			require.NoError(t, tx.Rollback())
			require.NoError(t, call(s, "locked"))
			require.Empty(t, seen.of(store.EventDown))
			require.InDelta(t, c.was+1, x.level(t, "locked"), 0.1)
		})
	}
}

// The server ends the session of a process that stops while it has a row's lock.
func TestLock_OfAProcessThatStops(t *testing.T) {
	x := newTables(t, theServer(t))
	s := x.store(t)
	require.NoError(t, call(s, "key"))
	tx := x.begin(t, "SELECT token, state, clock FROM "+x.config.Schema+".dripfeed_buckets_lock_1($1, '100', '500', false)", s.Key("key"))
	require.NoError(t, call(s, "key"))
	require.Error(t, tx.Commit(), "its transaction was ended")
	require.InDelta(t, 2, x.level(t, "key"), 0.1)
}

// The time of a step is the server's once the row is locked, and not when the statement began. A row
// that does not exist cannot be locked, and the clock is read all the same.
func TestLock_ClockIsReadAfterIt(t *testing.T) {
	x := newTables(t, theServer(t))
	s := x.store(t)
	lock := "FROM " + x.config.Schema + ".dripfeed_buckets_lock_1($1, '20000', '20000', false)"
	require.Equal(t, 1., x.one(t, "SELECT count(*) "+lock+" WHERE token = 0 AND clock > 0", s.Key("key")))
	require.NoError(t, call(s, "key"))
	holder := x.lock(t, s.Key("key"))
	clock := make(chan float64)
	go func() { clock <- x.one(t, "SELECT clock "+lock, s.Key("key")) }()
	require.Eventually(t, func() bool {
		return x.one(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%"+x.config.Schema+"%'") == 1
	}, patience, 5*time.Millisecond)
	released := x.one(t, "SELECT extract(epoch FROM clock_timestamp()) * 1000000")
	require.NoError(t, holder.Rollback())
	require.GreaterOrEqual(t, <-clock, released)
}

// The server finds out only when it commits that it cannot: then nothing was written.
func TestLock_CommitThatFails(t *testing.T) {
	for _, driver := range []string{"pgx", "postgres"} {
		x := newTables(t, theServer(t))
		s := x.over(x.open(t, driver, nil))
		require.NoError(t, call(s, "key"))
		x.exec(t, "CREATE FUNCTION "+x.config.Schema+".fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$")
		x.exec(t, "CREATE CONSTRAINT TRIGGER fail AFTER UPDATE ON "+x.table()+" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION "+x.config.Schema+".fail()")
		require.ErrorContains(t, call(s, "key"), "not this one")
	}
}
