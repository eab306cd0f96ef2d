package pgtest

import (
	"os"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Old and new processes run next to each other, in long runs for a minute.
func TestRollout_OfLimits(t *testing.T) {
	t.Parallel()
	x := newTables(t, theServer(t))
	db := x.open(t, "", nil)
	f := &rollouttest.Fleet{For: 2 * time.Second, Tenants: 100, Open: func(testing.TB) store.Store {
		return x.over(db, func(c *pgstore.Config) { c.Timeout = time.Minute })
	}}
	if os.Getenv("DRIPFEED_LONG") != "" {
		f.For, f.Tenants = time.Minute, 1_000
	}
	f.Test(t)
}
