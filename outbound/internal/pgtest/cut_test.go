package pgtest

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A server that starts again has cut the connections that the DB has idle. The next call finds that out, and is no
// outage.
func TestConnections_CutWhileIdle(t *testing.T) {
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			x := newTables(t, theServer(t))
			who := x.role(t)
			db := x.as(who).open(t, driver, nil)
			db.SetMaxIdleConns(6)
			var told events
			s := x.over(db, told.observe)
			for range 3 {
				_, err := s.Update(bg, "key", calls(1))
				require.NoError(t, err)
				conns := make([]*sql.Conn, 6)
				for i := range conns {
					conns[i], err = db.Conn(context.Background())
					require.NoError(t, err)
				}
				for _, c := range conns {
					require.NoError(t, c.Close())
				}
				x.exec(t, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = '"+who.Username()+"'")
				start := time.Now()
				_, err = s.Update(bg, "key", calls(1))
				require.NoError(t, err)
				t.Logf("the call took %v", time.Since(start))
			}
			require.Empty(t, told.of(store.EventDown))
			require.InDelta(t, 6, x.level(t, "key"), 0.1)
		})
	}
}
