package pgtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "github.com/lib/pq"            // the driver postgres
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var bg = context.Background()

// long says that tests go further.
var long = os.Getenv("DRIPFEED_LONG") == "1"

// tables is a table of one test, with its server.
type tables struct {
	*server
	config pgstore.Config
}

// newTables makes a table of the test's own.
func newTables(t testing.TB, s *server) *tables {
	t.Helper()
	return newTablesIn(t, s, fmt.Sprintf("test_%x", rand.Uint64()))
}

func newTablesIn(t testing.TB, s *server, schema string) *tables {
	t.Helper()
	x := &tables{server: s, config: pgstore.Config{Schema: schema, Timeout: 20 * time.Second}}
	s.with(t, func(db *sql.DB) error { return pgstore.Migrate(bg, db, x.config) })
	return x
}

// table is the table's name in SQL.
func (x *tables) table() string { return x.config.Schema + ".dripfeed_buckets" }

// store returns the store of one process.
func (x *tables) store(t testing.TB, more ...func(*pgstore.Config)) *rowstore.Store {
	t.Helper()
	return x.over(x.open(t, "", nil), more...)
}

func (x *tables) over(db *sql.DB, more ...func(*pgstore.Config)) *rowstore.Store {
	c := x.config
	for _, f := range more {
		f(&c)
	}
	return pgstore.New(db, c)
}

// short makes a store give up soon.
func short(c *pgstore.Config) { c.Timeout = time.Second }

// durable makes a store wait for the disk.
func durable(c *pgstore.Config) { c.Durable = true }

// granting is held while a role gets its rights: PostgreSQL fails one of two GRANTs at the same time.
var granting sync.Mutex

// role makes a role that may do no more than a process needs, with settings, and returns its part of the URL.
func (x *tables) role(t testing.TB, settings ...string) *url.Userinfo {
	t.Helper()
	granting.Lock()
	defer granting.Unlock()
	name := fmt.Sprintf("worker_%x", rand.Uint64())
	x.exec(t, "CREATE ROLE "+name+" LOGIN")
	x.exec(t, "GRANT USAGE ON SCHEMA "+x.config.Schema+" TO "+name)
	x.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+x.table()+" TO "+name)
	for _, set := range settings {
		x.exec(t, "ALTER ROLE "+name+" SET "+set)
	}
	return url.User(name)
}

// as returns the tables as another user sees them.
func (x *tables) as(who *url.Userinfo) *tables {
	s := *x.server
	s.user = who
	return &tables{server: &s, config: x.config}
}

// trace counts what a traced DB has asked the server.
type trace struct {
	queries, deadlocks atomic.Int64
	updates            atomic.Int64 // of a row, without the function
	deleted            atomic.Int64 // rows
	most               atomic.Int64 // rows that one statement has deleted
}

// TraceQueryStart implements [pgx.QueryTracer].
func (c *trace) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (c *trace) TraceQueryEnd(_ context.Context, _ *pgx.Conn, end pgx.TraceQueryEndData) {
	c.queries.Add(1)
	if end.CommandTag.Update() {
		c.updates.Add(1)
	}
	var failed *pgconn.PgError
	if errors.As(end.Err, &failed) && failed.Code == "40P01" {
		c.deadlocks.Add(1)
	}
	if n := end.CommandTag.RowsAffected(); end.CommandTag.Delete() {
		c.deleted.Add(n)
		for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
		}
	}
}

// traced opens a DB as a role that may do no more than a process needs.
func (x *tables) traced(t testing.TB, c *trace, settings ...string) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(x.as(x.role(t, settings...)).url(nil))
	require.NoError(t, err)
	config.Tracer = c
	db := stdlib.OpenDB(*config)
	db.SetMaxIdleConns(8)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// lock locks a row as a person does by hand, until the transaction ends.
func (x *tables) lock(t testing.TB, key []byte) *sql.Tx {
	t.Helper()
	return x.begin(t, "SELECT FROM "+x.table()+" WHERE key = $1 FOR UPDATE", key)
}

// begin carries a statement out in a transaction that a person leaves open.
func (x *tables) begin(t testing.TB, text string, args ...any) *sql.Tx {
	t.Helper()
	tx, err := x.open(t, "", nil).Begin()
	require.NoError(t, err)
	_, err = tx.Exec(text, args...)
	require.NoError(t, err)
	return tx
}

// ages is a limit so slow that nothing leaks from it during a test.
var ages = []store.Limit{{Name: "calls", Capacity: 1e5, Rate: 1e-4}}

// calls asks for n calls of one unit, now.
func calls(n int) *store.Op { return callsBy(ages, n) }

func callsBy(limits []store.Limit, n int) *store.Op {
	op := &store.Op{Limits: limits, Base: store.Hash(limits), Action: store.Book}
	for range n {
		op.Costs = append(op.Costs, store.Units{1})
	}
	return op
}

// call makes a call of one unit of a key.
func call(s *rowstore.Store, key string) error {
	_, err := s.Update(bg, key, calls(1))
	return err
}

// level returns the level of a key, as another process sees it.
func (x *tables) level(t testing.TB, key string) (level float64) {
	t.Helper()
	x.with(t, func(db *sql.DB) error {
		r, err := x.over(db).Update(bg, key, &store.Op{Limits: ages, Base: store.Hash(ages)})
		level = r.State.Level[0]
		return err
	})
	return level
}

// each runs work in n goroutines, and waits for them.
func each(n int, work func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { work(i) })
	}
	wg.Wait()
}

// busy runs work in n goroutines again and again until stop is called.
func busy(n int, work func(i int)) (stop func()) {
	ctx, cancel := context.WithCancel(bg)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				work(i)
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// bucket returns a bucket of a store.
func bucket(s store.Store, key string, limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewSharedBucket(s, key, limits...))
}

// events are the events that stores have reported.
type events struct {
	mu  sync.Mutex
	all []store.StoreEvent
}

func (e *events) observe(c *pgstore.Config) {
	c.Observe = func(ev store.StoreEvent) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.all = append(e.all, ev)
	}
}

// of returns the events of a kind so far.
func (e *events) of(kind store.StoreEventKind) (of []store.StoreEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.Kind == kind {
			of = append(of, ev)
		}
	}
	return of
}

// await returns the first event of a kind.
func (e *events) await(t testing.TB, kind store.StoreEventKind) store.StoreEvent {
	t.Helper()
	require.Eventually(t, func() bool { return len(e.of(kind)) > 0 }, patience, time.Millisecond, "no event %v", kind)
	return e.of(kind)[0]
}
