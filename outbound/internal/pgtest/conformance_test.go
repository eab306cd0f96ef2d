package pgtest

import (
	"database/sql"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// The exam, by each driver, as a role that may do no more than it needs. Roles may have settings that
// make other programs wait or repeat.
func TestConformance(t *testing.T) {
	server := theServer(t)
	for _, c := range []struct {
		driver   string
		settings []string
	}{
		{"postgres", []string{"default_transaction_isolation = 'repeatable read'", "statement_timeout = '50ms'"}},
		{"pgx", []string{"default_transaction_isolation = 'serializable'", "lock_timeout = '5ms'", "idle_in_transaction_session_timeout = '50ms'", "search_path = ''"}},
	} {
		t.Run(fmt.Sprint(c.driver, c.settings), func(t *testing.T) {
			t.Parallel() // the cases are, and one exam need not wait for the other
			x := newTables(t, server)
			worker := x.as(x.role(t, c.settings...))
			outboundtest.TestStore(t, func(t *testing.T) store.Store { return x.over(worker.open(t, c.driver, nil)) })
		})
	}
}

// Nothing is left in a session, so that the next transaction may be on another connection.
func TestConformance_Pgbouncer(t *testing.T) {
	x := newTables(t, theServer(t))
	b := pgbouncer(t, x.server)
	outboundtest.TestStore(t, func(t *testing.T) store.Store {
		return x.over(b.open(t, "", url.Values{"default_query_exec_mode": {"exec"}}))
	})
}

// The exam with a server that hangs when the exam says so, and with stores that know only what was
// saved.
func TestConformance_HungServer(t *testing.T) {
	x := newTables(t, theServer(t))
	worker := x.as(x.role(t))
	type way struct {
		*proxy
		db *sql.DB
	}
	var mu sync.Mutex
	ways := make(map[store.Store]way)
	open := func(w way) store.Store {
		s := x.over(w.db, func(c *pgstore.Config) { c.Timeout = 1500 * time.Millisecond })
		mu.Lock()
		defer mu.Unlock()
		ways[s] = w
		return s
	}
	of := func(s store.Store) way {
		mu.Lock()
		defer mu.Unlock()
		return ways[s]
	}
	outboundtest.TestStore(t, func(t *testing.T) store.Store {
		line := newProxy(t, x.server)
		return open(way{line, line.in(worker.server).open(t, "", nil)})
	}, outboundtest.StoreHooks{
		Break: func(s store.Store) (mend func()) {
			of(s).set(faults{hang: true})
			return func() { of(s).set(faults{}) }
		},
		Reopen: func(s store.Store) store.Store { return open(of(s)) },
	})
}
