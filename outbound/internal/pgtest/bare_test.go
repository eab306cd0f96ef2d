package pgtest

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

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
