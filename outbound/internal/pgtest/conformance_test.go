package pgtest

import (
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A store passes the conformance test by each driver, as a role that may do no more than it needs.
// Roles may have settings that make other programs wait or repeat. With pgx the server hangs when
// the test says so.
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
			t.Parallel() // the cases are, and one conformance test need not wait for the other
			x := newTables(t, server)
			role := x.role(t, c.settings...)
			if c.driver == "postgres" {
				outboundtest.TestStore(t, func(t *testing.T) store.Store { return x.over(x.as(role).open(t, c.driver, nil)) })
				return
			}
			type way struct {
				*proxy
				db *sql.DB
			}
			var ways sync.Map // of the stores
			of := func(s store.Store) way {
				w, _ := ways.Load(s)
				return w.(way)
			}
			open := func(w way) store.Store {
				s := x.over(w.db, func(c *pgstore.Config) { c.Timeout = 1500 * time.Millisecond })
				ways.Store(s, w)
				return s
			}
			outboundtest.TestStore(t, func(t *testing.T) store.Store {
				line := newProxy(t, server)
				return open(way{line, line.in(x.as(role).server).open(t, c.driver, nil)})
			}, outboundtest.StoreHooks{
				Break: func(s store.Store) (mend func()) {
					of(s).set(faults{hang: true})
					return func() { of(s).set(faults{}) }
				},
				Reopen: func(s store.Store) store.Store { return open(of(s)) },
			})
		})
	}
}

// Old and new processes run next to each other, in long runs for a minute. Then three processes change
// the limits of a key between each other's calls.
func TestConformance_RolloutOfLimits(t *testing.T) {
	t.Parallel()
	x := newTables(t, theServer(t))
	db := x.open(t, "", nil)
	f := &rollouttest.Fleet{For: 2 * time.Second, Tenants: 100, Open: func(testing.TB) store.Store {
		return x.over(db, func(c *pgstore.Config) { c.Timeout = time.Minute })
	}}
	histories := 100
	if long {
		f.For, f.Tenants, histories = time.Minute, 1_000, 3_000
	}
	f.Test(t)
	f.PlayFor(t, histories)
}

// openBare opens the store at a schema and a URL.
func openBare(addr string) store.Store {
	schema, url, _ := strings.Cut(addr, " ")
	db, err := sql.Open("pgx", url)
	if err != nil {
		panic(err)
	}
	return pgstore.New(db, pgstore.Config{Schema: schema})
}

// Without a queue a Window holds, too: processes 0.2 to 100 ms away are stopped and killed, and
// replies are lost.
func TestBare_WindowHolds(t *testing.T) {
	t.Parallel()
	x := newTables(t, theServer(t))
	rollouttest.Bare(t, func(t *testing.T, trip time.Duration) string {
		line := newProxy(t, x.server)
		line.set(faults{way: trip / 2, lost: 0.005})
		return x.config.Schema + " " + line.in(x.server).url(nil)
	})
}
