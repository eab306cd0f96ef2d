package pgtest

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// spend acquires until the bucket is full or the server is gone, and returns how many went.
func spend(b *outbound.Bucket, n int) (went float64) {
	for range n {
		if _, err := b.Acquire(bg, outbound.Cost{1}); err == nil {
			went++
		}
	}
	return went
}

// A crash loses what did not wait for the disk, and nothing else; the workers go on by themselves. Of
// a table that is not logged it loses all, and then at most a capacity more goes out.
func TestCrash_OfTheServer(t *testing.T) {
	x := newTables(t, ownServer(t, "fsync=on", "wal_writer_delay=10s"))
	limit := outbound.Limit{Capacity: 1000, LeakRate: 1e-6}
	var told events
	db := x.open(t, "", nil)
	durable := x.over(db, func(c *pgstore.Config) { c.Durable = true }, told.observe)
	quick := x.over(db, told.observe)
	unlogged := newTables(t, x.server)
	x.exec(t, "ALTER TABLE "+unlogged.table()+" SET UNLOGGED")
	small := outbound.Limit{Capacity: 30, LeakRate: 1e-6}
	forgetful := bucket(unlogged.over(db, told.observe), "unlogged", small)
	require.Equal(t, small.Capacity, spend(forgetful, 40))
	went := map[string]float64{"quick": spend(bucket(quick, "quick", limit), 50)}
	went["durable"] = spend(bucket(durable, "durable", limit), 50) // whose commits take those before along
	went["quick"] += spend(bucket(quick, "quick", limit), 50)
	x.kill(syscall.SIGQUIT)
	require.NoError(t, x.start("fsync=on", "wal_writer_delay=10s"))
	for key, s := range map[string]*rowstore.Store{"durable": durable, "quick": quick} {
		b := bucket(s, key, limit)
		require.Eventually(t, func() bool { _, err := b.State(bg); return err == nil }, patience, 10*time.Millisecond)
		state, err := b.State(bg)
		require.NoError(t, err)
		t.Logf("%s: %v of %v are left", key, state.Level, went[key])
		if key == "durable" {
			require.InDelta(t, went[key], state.Level, 0.1)
			continue
		}
		require.GreaterOrEqual(t, state.Level, 50-0.1)
		require.LessOrEqual(t, state.Level, went[key]+0.1)
		if state.Level < went[key]-0.5 {
			told.await(t, store.EventDataLoss)
		}
	}
	again := 0.
	require.Eventually(t, func() bool { again += spend(forgetful, 40); return again > 0 }, patience, 100*time.Millisecond, "its refusal is remembered for a second")
	require.Equal(t, small.Capacity, again)
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(told.of(store.EventDataLoss), func(e store.StoreEvent) bool { return e.Key == "unlogged" })
	}, patience, time.Millisecond)
}

// A replica that is behind is promoted. What it has not heard of is lost, at most a capacity, and
// no worker's old row overwrites what is charged there.
func TestCrash_ReplicaIsPromoted(t *testing.T) {
	settings := []string{"wal_level=replica", "max_wal_senders=4"}
	x := newTables(t, ownServer(t, settings...))
	wal := newProxy(t, x.server)
	replica := wal.in(x.server).replica(t, settings...)
	limit := outbound.Limit{Capacity: 300, LeakRate: 1e-6}
	var told events
	line := newProxy(t, x.server)
	through := line.in(x.server)
	s := x.over(through.open(t, "", nil), func(c *pgstore.Config) { c.Timeout = 2 * time.Second }, told.observe)
	b := bucket(s, "key", limit)
	went := spend(b, 100)
	require.Equal(t, 100., went)
	at := &tables{server: replica, config: x.config}
	require.Eventually(t, func() bool { // it has heard of them
		return replica.one(t, "SELECT count(*) FROM "+x.table()) == 1 &&
			replica.one(t, "SELECT (pg_last_wal_replay_lsn() >= '"+x.lsn(t)+"')::int") == 1
	}, patience, 10*time.Millisecond)
	wal.set(faults{hang: true}) // now it falls behind
	went += spend(b, 100)
	require.Equal(t, 200., went)
	var busy sync.WaitGroup // workers who write another row at the same time, and so lock it
	stop := make(chan struct{})
	far := newProxy(t, x.server)
	far.set(faults{way: 300 * time.Microsecond})
	for range 4 {
		other := x.over(far.in(x.server).open(t, "", nil), short, told.observe)
		for range 4 {
			busy.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					// If nothing answers until the timeout, a call returns the last that it has heard: perhaps that the row is locked.
					_, err := other.Update(bg, "busy", calls(1))
					if err != nil && !errors.Is(err, store.ErrUnavailable) && !strings.Contains(err.Error(), "keeps the row locked") {
						t.Errorf("a replica that is not promoted is away, and not: %v", err)
						return
					}
				}
			})
		}
	}
	time.Sleep(100 * time.Millisecond) // until they do
	x.kill(syscall.SIGQUIT)
	for _, p := range []*proxy{line, far} {
		p.mu.Lock()
		p.to = replica.host
		p.mu.Unlock()
	}
	_, err := bucket(at.over(replica.open(t, "", nil), short), "key", limit).Acquire(bg, outbound.Cost{1})
	close(stop)
	busy.Wait()
	require.ErrorIs(t, err, store.ErrUnavailable, "a replica that is not promoted yet")
	require.Empty(t, told.of(store.EventDenied))
	replica.exec(t, "SELECT pg_promote()")
	require.Eventually(t, func() bool { _, err := b.State(bg); return err == nil }, patience, 10*time.Millisecond)
	went += spend(b, 400)
	t.Logf("%v went of a capacity of %v", went, limit.Capacity)
	require.LessOrEqual(t, went, 2*limit.Capacity)
	require.GreaterOrEqual(t, went, limit.Capacity)
	require.Greater(t, went, limit.Capacity, "the replica has not heard of some")
	told.await(t, store.EventDataLoss)
	require.InDelta(t, limit.Capacity, at.levelOf(t, "key", limit), 0.1)
}

// levelOf returns the level of a key, as another worker with the same limit sees it.
func (x *tables) levelOf(t testing.TB, key string, limit outbound.Limit) float64 {
	t.Helper()
	state, err := bucket(x.store(t), key, limit).State(bg)
	require.NoError(t, err)
	return state.Level
}

// lsn returns how far the server has written.
func (s *server) lsn(t testing.TB) (lsn string) {
	t.Helper()
	db, err := sql.Open("pgx", s.url(nil))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.QueryRow("SELECT pg_current_wal_lsn()").Scan(&lsn))
	return lsn
}

// replica starts a replica of the server.
func (s *server) replica(t testing.TB, settings ...string) *server {
	t.Helper()
	folder, err := bin()
	require.NoError(t, err)
	dir, err := newFolder("replica")
	require.NoError(t, err)
	cmd, err := command(filepath.Join(folder, "pg_basebackup"), "-D", dir, "-d", s.url(nil), "-R", "-X", "stream", "-c", "fast", "--no-sync")
	require.NoError(t, err)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	r := &server{dir: dir, user: s.user}
	require.NoError(t, r.start(append(settings, "hot_standby=on")...))
	t.Cleanup(func() { r.kill(syscall.SIGQUIT) })
	return r
}

// pgbouncer starts a pgbouncer in transaction mode in front of a server. Without one the test is skipped,
// or fails where servers are required.
func pgbouncer(t testing.TB, s *server) *server {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip("there is no pgbouncer")
	}
	require.NoError(t, err)
	host, err := freeHost()
	require.NoError(t, err)
	in, err := newFolder("bouncer")
	require.NoError(t, err)
	config := filepath.Join(in, "pgbouncer.ini")
	writeFile(t, config, fmt.Sprintf("[databases]\npostgres = host=%s port=%s user=postgres\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=%s\n"+
		"unix_socket_dir=\nauth_type=any\npool_mode=transaction\ndefault_pool_size=8\nmax_client_conn=1000\nlogfile=/dev/null\n",
		hostOf(s.host), portOf(s.host), portOf(host)))
	cmd, err := command(program, config)
	require.NoError(t, err)
	begun := make(chan error)
	starter() <- func() { begun <- cmd.Start() }
	require.NoError(t, <-begun)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	b := &server{host: host, user: s.user}
	db := b.open(t, "", map[string][]string{"default_query_exec_mode": {"exec"}})
	require.Eventually(t, func() bool { return db.Ping() == nil }, patience, 10*time.Millisecond)
	return b
}
