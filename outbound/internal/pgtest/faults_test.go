package pgtest

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// allowance is the limit of the calls that a fault hits: more is asked for than it admits.
var allowance = []store.Limit{{Name: "calls", Capacity: 20, Rate: 50}}

// fault is a row of the matrix.
type fault struct {
	name string
	// does causes the fault, and returns at the time from which calls have to be admitted again. Rows
	// that need more than a server bring it about in before, once the server runs.
	before func(f *faulty)
	does   func(f *faulty)
	// settings are the server's.
	settings []string
	down     int     // of how many processes the store is unavailable
	denied   bool    // the server's error says that no wait cures it
	loss     bool    // what was charged last may be lost, so that at most a Capacity more is admitted
	lost     bool    // it is lost, and each process reports that
	stepped  float64 // seconds by which the server's clock steps ahead, each of which admits Rate more
	flows    bool    // calls are admitted during the fault too
}

const (
	lasting = time.Second     // of each fault, at least
	soon    = 2 * time.Second // after its end calls are admitted again
	// A process that a fault leaves without a store finds that out soon. The others do not take a busy
	// machine for an outage.
	downTimeout, upTimeout = time.Second, 20 * time.Second
)

// timeout is that of a process's store.
func (c *fault) timeout(process int) time.Duration {
	if process < c.down {
		return downTimeout
	}
	return upTimeout
}

// matrix is what may happen to a fleet that shares a bucket in PostgreSQL. In each row three processes
// ask all the time. Each call ends within the Timeout and 0.2 s, nothing is charged twice, no more is
// admitted than the limit and the cost of the fault allow, calls are admitted within 2 s of the
// fault's end, and each process's store reports the outage and its end once.
var matrix = []fault{
	{name: "killed, and started again", down: 3, loss: true, does: func(f *faulty) {
		f.kill(syscall.SIGQUIT)
		f.lasts()
		f.must(f.start())
	}},
	{name: "one of its processes is killed", loss: true, does: func(f *faulty) {
		db := f.open(f.t, "", nil)
		conn, err := db.Conn(bg)
		f.must(err)
		pid := int(f.one(f.t, "SELECT pid FROM pg_stat_activity WHERE application_name = 'worker' LIMIT 1"))
		f.must(syscall.Kill(pid, syscall.SIGKILL)) // so the server ends all others, and recovers
		require.Eventually(f.t, func() bool { return conn.PingContext(bg) != nil }, patience, time.Millisecond)
		require.Eventually(f.t, func() bool { return db.Ping() == nil }, patience, time.Millisecond)
	}},
	{name: "hangs", down: 3, does: func(f *faulty) {
		f.signal(f.t, syscall.SIGSTOP)
		f.lasts()
		f.signal(f.t, syscall.SIGCONT)
	}},
	{name: "restarts with its data", down: 3, does: func(f *faulty) {
		f.kill(syscall.SIGINT)
		f.lasts()
		f.must(f.start())
	}},
	{name: "restarts without its data", down: 3, loss: true, lost: true, does: func(f *faulty) {
		f.kill(syscall.SIGQUIT)
		empty := newTablesIn(f.t, ownServer(f.t), f.config.Schema)
		empty.kill(syscall.SIGINT)
		f.dir = empty.dir
		f.lasts()
		f.must(f.start())
	}},
	{name: "planned failover", down: 3, settings: replicated, before: (*faulty).replicate, does: func(f *faulty) {
		f.kill(syscall.SIGINT) // which sends all to the replica first
		f.lasts()
		f.promote()
	}},
	{name: "failover that loses the last writes", down: 3, loss: true, lost: true, settings: replicated, before: (*faulty).replicate, does: func(f *faulty) {
		f.wal.set(faults{hang: true})
		time.Sleep(200 * time.Millisecond)
		f.kill(syscall.SIGQUIT)
		f.lasts()
		f.promote()
	}},
	{name: "full disk", down: 3, before: func(f *faulty) {
		// The server fails so if it cannot write a table. If it cannot write its log, it ends, as in the first row.
		f.exec(f.t, "CREATE TABLE full_disk AS SELECT false AS yes")
		f.exec(f.t, "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"+
			" IF (SELECT yes FROM public.full_disk) THEN RAISE 'No space left on device' USING ERRCODE = 'disk_full'; END IF; RETURN new; END $$")
		f.exec(f.t, "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON "+f.table()+" FOR EACH ROW EXECUTE FUNCTION full_disk()")
	}, does: func(f *faulty) {
		f.exec(f.t, "UPDATE full_disk SET yes = true")
		f.lasts()
		f.exec(f.t, "UPDATE full_disk SET yes = false")
	}},
	{name: "only reads", down: 3, does: func(f *faulty) {
		f.exec(f.t, "ALTER SYSTEM SET default_transaction_read_only = on")
		f.exec(f.t, "SELECT pg_reload_conf()")
		f.lasts()
		f.exec(f.t, "ALTER SYSTEM RESET default_transaction_read_only")
		f.exec(f.t, "SELECT pg_reload_conf()")
		require.Eventually(f.t, func() bool {
			return f.one(f.t, "SELECT (current_setting('default_transaction_read_only') = 'off')::int") == 1
		}, patience, time.Millisecond)
	}},
	{name: "wrong password", denied: true, before: func(f *faulty) {
		f.exec(f.t, "CREATE ROLE worker LOGIN SUPERUSER PASSWORD 'right'")
		file := filepath.Join(f.dir, "pg_hba.conf")
		rules, err := os.ReadFile(file)
		f.must(err)
		f.must(os.WriteFile(file, append([]byte("host all worker all scram-sha-256\n"), rules...), 0o600))
		f.exec(f.t, "SELECT pg_reload_conf()")
		f.login = url.UserPassword("worker", "right")
	}, does: func(f *faulty) {
		f.exec(f.t, "ALTER ROLE worker PASSWORD 'other'")
		f.during = func() { // repeatedly, because a connection that opens now has no name yet
			f.exec(f.t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'worker'")
		}
		f.lasts()
		f.exec(f.t, "ALTER ROLE worker PASSWORD 'right'")
	}},
	{name: "its clock steps ahead, and back", stepped: 3, flows: true, before: func(f *faulty) {
		f.exec(f.t, "CREATE SCHEMA fake")
		f.exec(f.t, "CREATE TABLE fake.skew AS SELECT interval '0' AS d")
		f.exec(f.t, "CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.clock_timestamp() + d FROM fake.skew'")
		f.exec(f.t, "ALTER ROLE postgres SET search_path = fake, pg_catalog")
	}, does: func(f *faulty) {
		f.exec(f.t, "UPDATE fake.skew SET d = interval '3 s'")
		f.lasts()
		f.exec(f.t, "UPDATE fake.skew SET d = interval '-2 s'")
	}},
	{name: "one process is cut off", down: 1, flows: true, does: func(f *faulty) {
		f.lines[0].set(faults{hang: true})
		f.lasts()
		f.lines[0].set(faults{})
	}},
}

// replicated are the settings of a server with a replica.
var replicated = []string{"wal_level=replica", "max_wal_senders=4"}

// faulty is a fleet of three processes that a fault hits.
type faulty struct {
	t *testing.T
	*tables
	login   *url.Userinfo // nil: the superuser
	lines   [3]*proxy
	wal     *proxy // to the replica
	replica *server
	lasts   func() // until each process has met the fault
	during  func() // is called repeatedly while it lasts
	seen    [3]events
	busy    stalls

	mu               sync.Mutex           // protects what the processes have found:
	admitted, failed float64              // calls of the ledger, a limit of which nothing leaks; of failed ones it is unknown whether they were charged
	successes        [3][]time.Time       // of the ledger
	slow             [3][][2]time.Time    // calls, from their beginning to their end
	longest          time.Duration        // of a call of the bucket that was admitted
	places, arrivals outboundtest.History // of the bucket
}

func (f *faulty) must(err error) { require.NoError(f.t, err) }

// replicate starts a replica, and waits until it has what the server has.
func (f *faulty) replicate() {
	f.wal = newProxy(f.t, f.server)
	f.replica = f.wal.in(f.server).replica(f.t)
}

// promote makes the replica the server.
func (f *faulty) promote() {
	f.replica.exec(f.t, "SELECT pg_promote()")
	for _, line := range f.lines {
		line.moveTo(f.replica)
	}
	f.server = f.replica
}

// stalls are the times at which the machine was too busy to run what was due.
type stalls struct {
	mu    sync.Mutex
	ends  []time.Time
	longs []time.Duration
}

// watch notes stalls until stop is closed.
func (s *stalls) watch(stop <-chan struct{}) {
	const nap = 5 * time.Millisecond
	for last := time.Now(); ; {
		select {
		case <-stop:
			return
		case <-time.After(nap):
		}
		now := time.Now()
		if late := now.Sub(last) - nap; late > nap {
			s.mu.Lock()
			s.ends, s.longs = append(s.ends, now), append(s.longs, late)
			s.mu.Unlock()
		}
		last = now
	}
}

// between returns how long the machine had stalled in an interval. Each step of what was under way
// may have waited for so long.
func (s *stalls) between(begin, end time.Time) (sum time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, at := range s.ends {
		if at.After(begin) && !at.Add(-s.longs[i]).After(end) {
			sum += s.longs[i]
		}
	}
	return 8 * sum
}

// A fault costs what the matrix says, and nothing else.
func TestFaults_AtEachStep(t *testing.T) {
	turns := make(chan struct{}, 4) // servers at a time, so that they do not stall each other
	for _, c := range matrix {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			c.judge(t)
		})
	}
}

// work has a process call until stop is called.
func (f *faulty) work(c *fault, i int) (stop func()) {
	f.lines[i] = newProxy(f.t, f.server)
	through := f.lines[i].in(f.server)
	if f.login != nil {
		through.user = f.login
	}
	db := through.open(f.t, "", url.Values{"application_name": {"worker"}})
	s := f.over(db, func(d *pgstore.Config) { d.Timeout = c.timeout(i) }, f.seen[i].observe)
	return busy(2, func(bucket int) {
		time.Sleep(15 * time.Millisecond)
		key, op := "ledger", calls(1)
		if bucket > 0 {
			key, op = "bucket", callsBy(allowance, 2)
		}
		begin := time.Now()
		r, err := s.Update(bg, key, op)
		end := time.Now()
		n := float64(len(r.Charges))
		f.mu.Lock()
		defer f.mu.Unlock()
		if end.Sub(begin) > c.timeout(i)+200*time.Millisecond {
			f.slow[i] = append(f.slow[i], [2]time.Time{begin, end})
		}
		switch {
		case bucket > 0 && n > 0:
			f.places.Add(time.Unix(0, int64(r.State.At)), n)
			f.arrivals.Add(end, n)
			f.longest = max(f.longest, end.Sub(begin))
		case bucket > 0:
		case err != nil:
			f.failed++
		default:
			f.admitted += n
			f.successes[i] = append(f.successes[i], end)
		}
	})
}

// firstAfter returns when a process was first admitted after a time, or 0.
func (f *faulty) firstAfter(i int, t time.Time) (at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range slices.Backward(f.successes[i]) {
		if !s.After(t) {
			break
		}
		at = s
	}
	return at
}

// admits waits until a process is admitted after a time.
func (f *faulty) admits(i int, after time.Time) {
	require.Eventually(f.t, func() bool { return !f.firstAfter(i, after).IsZero() }, patience, time.Millisecond, "process %d is admitted nothing", i)
}

func (c *fault) judge(t *testing.T) {
	f := &faulty{t: t, tables: newTables(t, ownServer(t, c.settings...)), during: func() {}}
	if c.before != nil {
		c.before(f)
	}
	begun := time.Now()
	watched := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { f.busy.watch(watched) })
	var stops [3]func()
	for i := range stops {
		stops[i] = f.work(c, i)
		defer stops[i]()
	}
	for i := range stops {
		f.admits(i, begun)
	}
	f.lasts = func() {
		fails := time.Now()
		for f.during(); time.Since(fails) < lasting; f.during() {
			time.Sleep(lasting / 20)
		}
		for i := range stops {
			switch {
			case i < c.down:
				f.seen[i].await(t, store.EventDown)
			case c.denied:
				f.seen[i].await(t, store.EventDenied)
			case c.flows:
				f.admits(i, fails)
			}
		}
	}
	c.does(f)
	back := time.Now()
	pinged := f.open(t, "", nil)
	slowest := time.Duration(0) // answer of the server, which the machine may keep from the processor
	for i := range stops {
		for until := time.Now().Add(patience); f.firstAfter(i, back).IsZero(); time.Sleep(5 * time.Millisecond) {
			asked := time.Now()
			require.NoError(t, pinged.Ping())
			slowest = max(slowest, time.Since(asked))
			require.True(t, time.Now().Before(until), "process %d is admitted nothing", i)
		}
	}
	for i := range stops {
		at := f.firstAfter(i, back)
		require.LessOrEqual(t, at.Sub(back), soon+f.busy.between(back, at)+8*slowest, "process %d", i)
	}
	time.Sleep(500 * time.Millisecond) // what comes late, comes
	for _, stop := range stops {
		stop()
	}
	close(watched)
	watching.Wait()
	for i, slow := range f.slow {
		for _, s := range slow {
			require.LessOrEqual(t, s[1].Sub(s[0]), c.timeout(i)+200*time.Millisecond+f.busy.between(s[0], s[1]), "a call of process %d", i)
		}
	}
	level := f.level(t, "ledger")
	t.Logf("%v admitted, %v failed, level %v, stalls of %v", f.admitted, f.failed, level, f.busy.between(begun, time.Now())/8)
	require.LessOrEqual(t, level, f.admitted+f.failed+0.1, "nothing is charged twice")
	slack := 0.
	if c.loss {
		slack = allowance[0].Capacity
	} else {
		require.GreaterOrEqual(t, level, f.admitted-0.1, "nothing is lost")
	}
	if c.stepped == 0 {
		require.NoError(t, f.places.Check(allowance[0].Capacity, allowance[0].Rate, slack))
	} else {
		slack += min(allowance[0].Rate*c.stepped, allowance[0].Capacity) + allowance[0].Rate*f.longest.Seconds()
		require.NoError(t, f.arrivals.Check(allowance[0].Capacity, allowance[0].Rate, slack))
	}
	for i := range f.seen {
		e := &f.seen[i]
		down, up, denied := len(e.of(store.EventDown)), len(e.of(store.EventUp)), len(e.of(store.EventDenied))
		is := fmt.Sprintf("process %d: %d times down, %d up, %d denied", i, down, up, denied)
		require.Equal(t, down, up, is)
		if f.busy.between(begun, back) > time.Second { // a call may have ended for want of a processor
			continue
		}
		require.Equal(t, i < c.down, down == 1, is)
		require.LessOrEqual(t, down, 1, is)
		require.Equal(t, c.denied, denied == 1, is)
		require.LessOrEqual(t, denied, 1, is)
		if c.lost {
			e.await(t, store.EventDataLoss)
		}
	}
}

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
		var level float64
		require.Eventually(t, func() bool { // once the server answers
			state, err := bucket(s, key, limit).State(bg)
			level = state.Level
			return err == nil
		}, patience, 10*time.Millisecond)
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
