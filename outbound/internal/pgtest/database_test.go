package pgtest

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "github.com/lib/pq"              // the driver postgres
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
	db, err := sql.Open("pgx", s.url(nil))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, pgstore.Migrate(bg, db, x.config))
	return x
}

// table is the table's name in SQL.
func (x *tables) table() string { return x.config.Schema + ".dripfeed_buckets" }

// store returns the store of one worker.
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

// one returns the only value of a query.
func (s *server) one(t testing.TB, text string, args ...any) (n float64) {
	t.Helper()
	db, err := sql.Open("pgx", s.url(nil))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.QueryRow(text, args...).Scan(&n))
	return n
}

// role makes a role that may do no more than a worker needs, with settings, and returns its part of the URL.
func (x *tables) role(t testing.TB, settings ...string) *url.Userinfo {
	t.Helper()
	name := fmt.Sprintf("worker_%x", rand.Uint64())
	text := "CREATE ROLE " + name + " LOGIN;" +
		"GRANT USAGE ON SCHEMA " + x.config.Schema + " TO " + name + ";" +
		"GRANT SELECT, INSERT, UPDATE, DELETE ON " + x.table() + " TO " + name + ";"
	for _, set := range settings {
		text += "ALTER ROLE " + name + " SET " + set + ";"
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(text, ";"), ";") {
		x.exec(t, part)
	}
	return url.User(name)
}

// as returns the tables as another user sees them.
func (x *tables) as(who *url.Userinfo) *tables {
	s := *x.server
	s.user = who
	return &tables{server: &s, config: x.config}
}

// ages is a limit so slow that nothing leaks from it during a test.
var ages = []store.Limit{{Name: "calls", Capacity: 1e5, Rate: 1e-4}}

// calls asks for n calls of one unit, now.
func calls(n int) *store.Op {
	op := &store.Op{Limits: ages, Base: store.Hash(ages), Action: store.Book}
	for range n {
		op.Costs = append(op.Costs, store.Units{1})
	}
	return op
}

// level returns the level of a key, as another worker sees it.
func (x *tables) level(t testing.TB, key string) float64 {
	t.Helper()
	db, err := sql.Open("pgx", x.url(nil))
	require.NoError(t, err)
	defer db.Close()
	r, err := x.over(db).Update(bg, key, &store.Op{Limits: ages, Base: store.Hash(ages)})
	require.NoError(t, err)
	return r.State.Level[0]
}

// each runs work in n goroutines, and waits for them.
func each(n int, work func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { work(i) })
	}
	wg.Wait()
}

// bucket returns a bucket of a store.
func bucket(s store.Store, key string, limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewSharedBucket(s, key, limits...))
}

// events are the events that stores have told.
type events struct {
	mu   sync.Mutex
	told []store.StoreEvent
}

func (e *events) observe(c *pgstore.Config) {
	c.Observe = func(ev store.StoreEvent) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.told = append(e.told, ev)
	}
}

// of returns the events of a kind so far.
func (e *events) of(kind store.StoreEventKind) (of []store.StoreEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.told {
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

// sweepOf returns the query that finds expired rows, as it stands in the SQL of a Config.
func sweepOf(c pgstore.Config) string {
	text := c.SQL()
	_, text, _ = strings.Cut(text, "WHERE key IN ")
	text, _, _ = strings.Cut(text, ";\n")
	return strings.Trim(strings.TrimSpace(text), "()")
}
