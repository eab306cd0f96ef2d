package rollouttest

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A fleet on one store in memory, for a minute.
func TestFleet_InMemory(t *testing.T) {
	for name, check := range map[string]func(*Fleet, *testing.T){"beside": (*Fleet).Beside, "restarts": (*Fleet).Restarts, "keyed": (*Fleet).Keyed} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kept := store.NewMemory()
				f := &Fleet{Open: func(testing.TB) store.Store { return kept }, For: time.Minute, Tenants: 1_000}
				check(f, t)
			})
		})
	}
}

// Three processes change the limits of a key between each other's calls, of all kinds.
func TestChanges_InMemory(t *testing.T) {
	n := 300
	if os.Getenv("DRIPFEED_LONG") != "" {
		n = 50_000
	}
	PlayAll(t, n, false, func() func() store.Store {
		kept := store.NewMemory()
		return func() store.Store { return kept }
	})
}
