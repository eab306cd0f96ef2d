package pgtest

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	down     int     // of how many workers the store is unavailable
	denied   bool    // the server's words say that no wait cures it
	loss     bool    // what was charged last is lost, so that at most a Capacity more is admitted
	stepped  float64 // seconds by which the server's clock steps ahead, each of which admits Rate more
	flows    bool    // calls are admitted during the fault too
}

const (
	lasting = time.Second     // of each fault, at least
	soon    = 2 * time.Second // after its end calls are admitted again
	// A worker that a fault leaves without a store finds that out soon. The others do not take a busy
	// machine for an outage.
	downTimeout, upTimeout = time.Second, 20 * time.Second
)

// timeout is that of a worker's store.
func (c *fault) timeout(worker int) time.Duration {
	if worker < c.down {
		return downTimeout
	}
	return upTimeout
}

// matrix is what may happen to a fleet that shares a bucket in PostgreSQL. In each row three workers
// ask all the time. Each call ends within the Timeout and 0.2 s, nothing is charged twice, no more is
// admitted than the limit and the cost of the fault allow, calls are admitted within 2 s of the
// fault's end, and each worker's store reports the outage and its end once.
var matrix = []fault{
	{name: "killed, and started again", down: 3, loss: true, does: func(f *faulty) {
		f.kill(syscall.SIGQUIT)
		f.lasts()
		f.must(f.start())
	}},
	{name: "one of its processes is killed", loss: true, does: func(f *faulty) {
		f.exec(f.t, "SELECT 1") // the server answers
		pid := int(f.one(f.t, "SELECT pid FROM pg_stat_activity WHERE application_name = 'worker' LIMIT 1"))
		f.must(syscall.Kill(pid, syscall.SIGKILL)) // so the server ends all others, and recovers
		f.awaitServer()
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
	{name: "restarts without its data", down: 3, loss: true, does: func(f *faulty) {
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
	{name: "failover that loses the last writes", down: 3, loss: true, settings: replicated, before: (*faulty).replicate, does: func(f *faulty) {
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
		f.worker = url.UserPassword("worker", "right")
	}, does: func(f *faulty) {
		f.exec(f.t, "ALTER ROLE worker PASSWORD 'other'")
		f.during = func() { // repeatedly, because a connection that opens now has no name yet
			f.exec(f.t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'worker'")
		}
		f.lasts()
		f.exec(f.t, "ALTER ROLE worker PASSWORD 'right'")
	}},
	{name: "slow link", flows: true, does: func(f *faulty) {
		f.all(faults{way: 30 * time.Millisecond})
		f.lasts()
		f.all(faults{})
	}},
	{name: "lost replies", flows: true, does: func(f *faulty) {
		f.all(faults{unheard: 0.1})
		f.lasts()
		f.all(faults{})
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
	{name: "one worker is cut off", down: 1, flows: true, does: func(f *faulty) {
		f.lines[0].set(faults{hang: true})
		f.lasts()
		f.lines[0].set(faults{})
	}},
}

// replicated are the settings of a server with a replica.
var replicated = []string{"wal_level=replica", "max_wal_senders=4"}

// faulty is a fleet of three workers that a fault hits.
type faulty struct {
	t *testing.T
	*tables
	worker  *url.Userinfo // nil: the superuser
	lines   [3]*proxy
	wal     *proxy // to the replica
	replica *server
	lasts   func() // until each worker has met the fault
	during  func() // is called repeatedly while it lasts
}

func (f *faulty) must(err error) { require.NoError(f.t, err) }

// all sets the faults of all workers' lines.
func (f *faulty) all(is faults) {
	for _, line := range f.lines {
		line.set(is)
	}
}

// awaitServer waits until the server answers.
func (f *faulty) awaitServer() {
	db := f.open(f.t, "", nil)
	require.Eventually(f.t, func() bool { return db.Ping() == nil }, patience, 5*time.Millisecond)
}

// replicate starts a replica, and waits until it has what the server has.
func (f *faulty) replicate() {
	f.wal = newProxy(f.t, f.server)
	f.replica = f.wal.in(f.server).replica(f.t, replicated...)
}

// promote makes the replica the server.
func (f *faulty) promote() {
	f.replica.exec(f.t, "SELECT pg_promote()")
	for _, line := range f.lines {
		line.mu.Lock()
		line.to = f.replica.host
		line.mu.Unlock()
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

// tally is what a worker has found.
type tally struct {
	mu        sync.Mutex
	admitted  int         // by the ledger, a limit of which nothing leaks
	failed    int         // calls of the ledger of which it is unknown whether they were charged
	successes []time.Time // of the ledger
	slow      [][2]time.Time
	longest   time.Duration // of a call of the bucket that was admitted
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

func (c *fault) judge(t *testing.T) {
	f := &faulty{t: t, tables: newTables(t, ownServer(t, c.settings...)), during: func() {}}
	if c.before != nil {
		c.before(f)
	}
	var told [3]events
	var tallies [3]tally
	var stores [3]*rowstore.Store
	var busy stalls
	var places, arrivals outboundtest.History
	var logging sync.Mutex
	stop := make(chan struct{})
	var working, watching sync.WaitGroup
	watching.Go(func() { busy.watch(stop) })
	repeat := func(call func()) {
		working.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(15 * time.Millisecond):
					call()
				}
			}
		})
	}
	for i := range stores {
		f.lines[i] = newProxy(t, f.server)
		through := f.lines[i].in(f.server)
		if f.worker != nil {
			through.user = f.worker
		}
		db := through.open(t, "", url.Values{"application_name": {"worker"}})
		s := f.over(db, func(d *pgstore.Config) { d.Timeout = c.timeout(i) }, told[i].observe)
		stores[i] = s
		n := &tallies[i]
		ask := func(key string, op *store.Op) (store.Reply, time.Duration, error) {
			begin := time.Now()
			r, err := s.Update(bg, key, op)
			end := time.Now()
			if end.Sub(begin) > c.timeout(i)+200*time.Millisecond {
				n.mu.Lock()
				n.slow = append(n.slow, [2]time.Time{begin, end})
				n.mu.Unlock()
			}
			return r, end.Sub(begin), err
		}
		repeat(func() {
			r, _, err := ask("ledger", calls(1))
			n.mu.Lock()
			defer n.mu.Unlock()
			if err != nil {
				n.failed++
				return
			}
			n.admitted += len(r.Charges)
			n.successes = append(n.successes, time.Now())
		})
		repeat(func() {
			r, took, err := ask("bucket", &store.Op{Limits: allowance, Base: store.Hash(allowance), Action: store.Book, Costs: []store.Units{{1}, {1}}})
			if err != nil || len(r.Charges) == 0 {
				return
			}
			logging.Lock()
			defer logging.Unlock()
			places.Add(time.Unix(0, int64(r.State.At)), float64(len(r.Charges)))
			arrivals.Add(time.Now(), float64(len(r.Charges)))
			n.longest = max(n.longest, took)
		})
	}
	firstAfter := func(i int, t time.Time) (at time.Time) {
		n := &tallies[i]
		n.mu.Lock()
		defer n.mu.Unlock()
		for k := len(n.successes) - 1; k >= 0 && n.successes[k].After(t); k-- {
			at = n.successes[k]
		}
		return at
	}
	admits := func(i int, after time.Time) {
		require.Eventually(t, func() bool { return !firstAfter(i, after).IsZero() }, patience, time.Millisecond, "worker %d is admitted nothing", i)
	}
	begun := time.Now()
	for i := range stores {
		admits(i, begun)
	}
	f.lasts = func() {
		fails := time.Now()
		for f.during(); time.Since(fails) < lasting; f.during() {
			time.Sleep(lasting / 20)
		}
		for i := range stores {
			switch {
			case i < c.down:
				told[i].await(t, store.EventDown)
			case c.denied:
				told[i].await(t, store.EventDenied)
			case c.flows:
				admits(i, fails)
			}
		}
	}
	c.does(f)
	back := time.Now()
	pinged := f.open(t, "", nil)
	slowest := time.Duration(0) // answer of the server, which the machine may keep from the processor
	for i := range stores {
		for until := time.Now().Add(patience); firstAfter(i, back).IsZero(); time.Sleep(5 * time.Millisecond) {
			asked := time.Now()
			require.NoError(t, pinged.Ping())
			slowest = max(slowest, time.Since(asked))
			require.True(t, time.Now().Before(until), "worker %d is admitted nothing", i)
		}
	}
	for i := range stores {
		at := firstAfter(i, back)
		require.LessOrEqual(t, at.Sub(back), soon+busy.between(back, at)+8*slowest, "worker %d", i)
	}
	time.Sleep(500 * time.Millisecond) // what comes late, comes
	close(stop)
	working.Wait()
	watching.Wait()
	var admitted, failed float64
	var longest time.Duration
	for i := range tallies {
		n := &tallies[i]
		admitted, failed, longest = admitted+float64(n.admitted), failed+float64(n.failed), max(longest, n.longest)
		for _, s := range n.slow {
			require.LessOrEqual(t, s[1].Sub(s[0]), c.timeout(i)+200*time.Millisecond+busy.between(s[0], s[1]), "a call of worker %d", i)
		}
	}
	level := f.level(t, "ledger")
	t.Logf("%v admitted, %v failed, level %v, stalls of %v", admitted, failed, level, busy.between(begun, time.Now())/8)
	require.LessOrEqual(t, level, admitted+failed+0.1, "nothing is charged twice")
	if !c.loss {
		require.GreaterOrEqual(t, level, admitted-0.1, "nothing is lost")
	}
	slack := 0.
	if c.loss {
		slack = allowance[0].Capacity
	}
	if c.stepped == 0 {
		require.NoError(t, places.Check(allowance[0].Capacity, allowance[0].Rate, slack))
	} else {
		slack += min(allowance[0].Rate*c.stepped, allowance[0].Capacity) + allowance[0].Rate*longest.Seconds()
		require.NoError(t, arrivals.Check(allowance[0].Capacity, allowance[0].Rate, slack))
	}
	for i := range told {
		e := &told[i]
		down, up, denied := len(e.of(store.EventDown)), len(e.of(store.EventUp)), len(e.of(store.EventDenied))
		is := fmt.Sprintf("worker %d: %d times down, %d up, %d denied", i, down, up, denied)
		require.Equal(t, down, up, is)
		if busy.between(begun, back) > time.Second { // a call may have ended for want of a processor
			continue
		}
		switch {
		case i < c.down:
			require.Equal(t, 1, down, is)
		default:
			require.Zero(t, down, is)
		}
		if c.denied {
			require.Equal(t, 1, denied, is)
		} else {
			require.Zero(t, denied, is)
		}
	}
}
