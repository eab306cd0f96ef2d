package pgtest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The time of a step is the server's once the row is locked, and not when the statement began.
func TestTheClockIsReadOnceTheRowIsLocked(t *testing.T) {
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

// Three workers are near the server, and one is ten times as far away. All ask for the same key as
// often as they can.
func TestAFarWorkerHasItsShare(t *testing.T) {
	x := newTables(t, theServer(t))
	shares := make([]float64, 4)
	each(4, func(i int) {
		line := newProxy(t, x.server)
		line.set(faults{way: 250 * time.Microsecond})
		if i == 3 {
			line.set(faults{way: 2500 * time.Microsecond})
		}
		s := x.over(line.in(x.server).open(t, "", nil))
		var n, failed atomic.Int64
		until := time.Now().Add(1500 * time.Millisecond)
		each(8, func(int) {
			for time.Now().Before(until) {
				if _, err := s.Update(bg, "key", calls(1)); err != nil {
					failed.Add(1)
				}
				n.Add(1)
			}
		})
		shares[i] = float64(n.Load())
		if failed.Load() > 0 {
			t.Errorf("%d calls failed", failed.Load())
		}
	})
	total := 0.
	for _, n := range shares {
		total += n
	}
	t.Log(shares)
	require.Greater(t, shares[3], 0.3*total/4)
	require.InDelta(t, total, x.level(t, "key"), 1)
}
