package pgtest

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// The exam, by each driver, as a role that may do no more than it needs.
func TestTheExam(t *testing.T) {
	x := newTables(t, theServer(t))
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			worker := x.as(x.role(t))
			outboundtest.TestStore(t, func(t *testing.T) leak.Store { return x.over(worker.open(t, driver, nil)) })
		})
	}
}

// Roles may have settings that make other programs wait or repeat.
func TestTheExamWithARolesSettings(t *testing.T) {
	for name, settings := range map[string][]string{
		"repeatable read":   {"default_transaction_isolation = 'repeatable read'", "statement_timeout = '50ms'"},
		"serializable":      {"default_transaction_isolation = 'serializable'"},
		"deferred and slow": {"default_transaction_deferrable = on", "lock_timeout = '5ms'", "idle_in_transaction_session_timeout = '50ms'", "search_path = ''"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTables(t, theServer(t))
			worker := x.as(x.role(t, settings...))
			for sentence, check := range outboundtest.StoreCases() {
				t.Run(sentence, func(t *testing.T) {
					t.Parallel()
					check(t, x.over(worker.open(t, "", nil)))
				})
			}
		})
	}
}

func TestOneDecision(t *testing.T) {
	x := newTables(t, theServer(t))
	for _, driver := range []string{"pgx", "postgres"} {
		s := x.over(x.open(t, driver, url.Values{}))
		for range 10 {
			start := time.Now()
			r, err := s.Update(bg, "key "+driver, calls(1))
			require.NoError(t, err)
			require.Len(t, r.Charges, 1)
			t.Log(driver, time.Since(start))
		}
		require.InDelta(t, 10, x.level(t, "key "+driver), 0.1)
	}
}
