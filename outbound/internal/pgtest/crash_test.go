package pgtest

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// spend acquires until the bucket is full or the server is unavailable, and returns how many calls left.
func spend(b *outbound.Bucket, n int) (left float64) {
	for range n {
		if _, err := b.Acquire(bg, outbound.Cost{1}); err == nil {
			left++
		}
	}
	return left
}

// A crash loses what did not wait for the disk, and nothing else; the processes continue by themselves.
// Of a table that is not logged it loses everything, and then at most one more capacity is admitted.
func TestCrash_OfTheServer(t *testing.T) {
	x := newTables(t, ownServer(t, "fsync=on", "wal_writer_delay=10s"))
	limit := outbound.Limit{Capacity: 1000, LeakRate: 1e-6}
	var seen events
	db := x.open(t, "", nil)
	stores := map[string]*rowstore.Store{"durable": x.over(db, durable, seen.observe), "quick": x.over(db, seen.observe)}
	unlogged := newTables(t, x.server)
	x.exec(t, "ALTER TABLE "+unlogged.table()+" SET UNLOGGED")
	small := outbound.Limit{Capacity: 30, LeakRate: 1e-6}
	forgetful := bucket(unlogged.over(db, seen.observe), "unlogged", small)
	require.Equal(t, small.Capacity, spend(forgetful, 40))
	left := make(map[string]float64)
	for _, key := range []string{"quick", "durable", "quick"} { // a durable commit takes those before it along
		left[key] += spend(bucket(stores[key], key, limit), 50)
	}
	x.kill(syscall.SIGQUIT)
	require.NoError(t, x.start("fsync=on", "wal_writer_delay=10s"))
	for key, s := range stores {
		level := levelOf(t, s, key, limit)
		t.Logf("%s: %v of %v are left", key, level, left[key])
		if key == "durable" {
			require.InDelta(t, left[key], level, 0.1)
			continue
		}
		require.GreaterOrEqual(t, level, 50-0.1)
		require.LessOrEqual(t, level, left[key]+0.1)
		if level < left[key]-0.5 {
			seen.await(t, store.EventDataLoss)
		}
	}
	again := 0.
	require.Eventually(t, func() bool { again += spend(forgetful, 40); return again > 0 }, patience, 100*time.Millisecond, "its refusal is remembered for a second")
	require.Equal(t, small.Capacity, again)
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(seen.of(store.EventDataLoss), func(e store.StoreEvent) bool { return e.Key == "unlogged" })
	}, patience, time.Millisecond)
}

// levelOf returns the level of a key once the server answers.
func levelOf(t *testing.T, s *rowstore.Store, key string, limit outbound.Limit) (level float64) {
	t.Helper()
	require.Eventually(t, func() bool {
		state, err := bucket(s, key, limit).State(bg)
		level = state.Level
		return err == nil
	}, patience, 10*time.Millisecond)
	return level
}

// A replica that is behind is promoted. What it has not received is lost, at most a capacity, and no
// process's old row overwrites what is charged there.
func TestCrash_ReplicaIsPromoted(t *testing.T) {
	x := newTables(t, ownServer(t, replicated...))
	wal, line, far := newProxy(t, x.server), newProxy(t, x.server), newProxy(t, x.server)
	replica := wal.in(x.server).replica(t)
	at := &tables{server: replica, config: x.config}
	limit := outbound.Limit{Capacity: 300, LeakRate: 1e-6}
	var seen events
	s := x.over(line.in(x.server).open(t, "", nil), func(c *pgstore.Config) { c.Timeout = 2 * time.Second }, seen.observe)
	b := bucket(s, "key", limit)
	left := spend(b, 100)
	require.Equal(t, 100., left)
	written := x.one(t, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")
	require.Eventually(t, func() bool { // it has received them
		return replica.one(t, "SELECT pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')") >= written
	}, patience, 10*time.Millisecond)
	wal.set(faults{hang: true}) // from here on it falls behind
	left += spend(b, 100)
	require.Equal(t, 200., left)
	far.set(faults{way: 300 * time.Microsecond})
	var others []*rowstore.Store
	for range 4 {
		others = append(others, x.over(far.in(x.server).open(t, "", nil), short, seen.observe))
	}
	stop := busy(16, func(i int) { // they write another row at the same time, and so lock it
		// If nothing answers until the timeout, a call returns the last answer: perhaps that the row is locked.
		err := call(others[i%4], "busy")
		if err != nil && !errors.Is(err, store.ErrUnavailable) && !strings.Contains(err.Error(), "keeps the row locked") {
			t.Errorf("a replica that is not promoted is unavailable, and not: %v", err)
		}
	})
	time.Sleep(100 * time.Millisecond) // until they do
	x.kill(syscall.SIGQUIT)
	line.moveTo(replica)
	far.moveTo(replica)
	_, err := bucket(at.store(t, short), "key", limit).Acquire(bg, outbound.Cost{1})
	stop()
	require.ErrorIs(t, err, store.ErrUnavailable, "a replica that is not promoted yet")
	require.Empty(t, seen.of(store.EventDenied))
	replica.exec(t, "SELECT pg_promote()")
	levelOf(t, s, "key", limit)
	left += spend(b, 400)
	t.Logf("%v left of a capacity of %v", left, limit.Capacity)
	require.LessOrEqual(t, left, 2*limit.Capacity)
	require.Greater(t, left, limit.Capacity, "the replica has not received some")
	seen.await(t, store.EventDataLoss)
	require.InDelta(t, limit.Capacity, levelOf(t, at.store(t), "key", limit), 0.1)
}

// Three processes have at most six calls in flight. One is cut off, and the others have its slots after
// its lease.
func TestInFlight_OfAProcessThatIsCutOff(t *testing.T) {
	const slots, lease = 6, 3 * time.Second
	x := newTables(t, theServer(t))
	var lines [3]*proxy
	var stores []store.Store
	for i := range lines {
		lines[i] = newProxy(t, x.server)
		stores = append(stores, x.over(lines[i].in(x.server).open(t, "", nil)))
	}
	fleet := rollouttest.StartCallers(t, slots, lease, stores)
	fleet.Full(t)
	lines[2].set(faults{hang: true})
	time.Sleep(lease/2 + 100*time.Millisecond) // by then it starts no more calls
	fleet.Full(t)
	fleet.Check(t)
}

// The server crashes, and starts again. A store that is durable has lost nothing: there are never more
// calls, and each process continues.
func TestInFlight_CrashOfTheServer(t *testing.T) {
	x := newTables(t, ownServer(t))
	var stores []store.Store
	for range 3 {
		stores = append(stores, x.store(t, durable))
	}
	fleet := rollouttest.StartCallers(t, 6, 6*time.Second, stores)
	for range 2 {
		fleet.AllGoOn(t, 10)
		x.kill(syscall.SIGQUIT)
		require.NoError(t, x.start())
	}
	fleet.AllGoOn(t, 10)
	fleet.Check(t)
}
