package pgtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The time of a step is the server's once the row is locked, and not when the statement began.
func TestLock_ClockIsReadAfterIt(t *testing.T) {
	x := newTables(t, theServer(t))
	s := x.store(t)
	_, err := s.Update(bg, "key", calls(1))
	require.NoError(t, err)
	holder, err := x.open(t, "", nil).Begin()
	require.NoError(t, err)
	_, err = holder.Exec("SELECT FROM "+x.table()+" WHERE key = $1 FOR UPDATE", s.Key("key"))
	require.NoError(t, err)
	clock := make(chan int64)
	go func() {
		var us int64
		if err := x.open(t, "", nil).QueryRow("SELECT clock FROM "+x.config.Schema+".dripfeed_buckets_lock_1($1, '20000', '20000', false)", s.Key("key")).Scan(&us); err != nil {
			t.Error(err)
		}
		clock <- us
	}()
	waits := func() bool {
		return x.one(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%"+x.config.Schema+"%'") == 1
	}
	require.Eventually(t, waits, patience, 5*time.Millisecond)
	var released int64
	require.NoError(t, holder.QueryRow("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Scan(&released))
	require.NoError(t, holder.Rollback())
	require.GreaterOrEqual(t, <-clock, released)
}
