package pgtest

import (
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var (
	execMode   = url.Values{"default_query_exec_mode": {"exec"}}
	binaryMode = url.Values{"binary_parameters": {"yes"}}
)

// Nothing is left in a session, so that the next transaction may be on another connection. Both drivers
// do as well, set as the documentation says.
func TestPooler_TransactionModeConforms(t *testing.T) {
	x := newTables(t, theServer(t))
	b := pgbouncer(t, x.server, "transaction")
	for driver, settings := range map[string]url.Values{"pgx": execMode, "postgres": binaryMode} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel() // the cases are
			outboundtest.TestStore(t, func(t *testing.T) store.Store { return x.over(b.open(t, driver, settings)) })
		})
	}
}

// A driver or a pooler with the wrong setting fails some steps. The error says what to set, and is no outage.
func TestPooler_WrongSettingIsNamed(t *testing.T) {
	x := newTables(t, theServer(t))
	pooler := map[string]*server{"transaction": pgbouncer(t, x.server, "transaction"), "statement": pgbouncer(t, x.server, "statement")}
	for _, c := range []struct {
		driver, mode, says string
		settings           url.Values
	}{
		{"postgres", "transaction", "binary_parameters=yes", nil},
		{"pgx", "transaction", "default_query_exec_mode=exec", nil},
		{"pgx", "statement", "statement pooling mode", execMode},
	} {
		t.Run(c.driver+" "+c.mode, func(t *testing.T) {
			var seen events
			var stores []*rowstore.Store
			for range 4 { // they write one row at the same time, and so lock it
				stores = append(stores, x.over(pooler[c.mode].open(t, c.driver, c.settings), seen.observe))
			}
			var mu sync.Mutex
			var said error
			each(16, func(i int) {
				for end := time.Now().Add(patience); time.Now().Before(end); {
					err := call(stores[i%4], c.driver+c.mode)
					mu.Lock()
					if said == nil && err != nil {
						said = err
					}
					done := said != nil
					mu.Unlock()
					if done {
						return
					}
				}
			})
			require.ErrorContains(t, said, c.says)
			require.NotErrorIs(t, said, store.ErrUnavailable)
			require.Eventually(t, func() bool { return len(seen.of(store.EventDenied)) > 0 }, patience, time.Millisecond)
			require.Empty(t, seen.of(store.EventDown), fmt.Sprint(seen.of(store.EventDown)))
		})
	}
}
