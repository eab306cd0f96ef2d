package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Migrate makes the table by any names, next to other processes that run it, and keeps what there is.
func TestMigrate_MakesTheTable(t *testing.T) {
	s := theServer(t)
	db := s.open(t, "", nil)
	for i, c := range []pgstore.Config{
		{Schema: fmt.Sprintf("my \"own\" '%x'; -- $$ $b$", time.Now().UnixNano())},
		{Table: fmt.Sprintf("Mixed case %x", time.Now().UnixNano())},
	} {
		each(8, func(i int) {
			require.NoError(t, pgstore.Migrate(bg, s.open(t, []string{"pgx", "postgres"}[i%2], nil), c))
		})
		c.Timeout = patience
		kept := pgstore.New(db, c)
		for range 2 {
			require.NoError(t, call(kept, "key"), i)
		}
		require.NoError(t, pgstore.Migrate(bg, db, c), "it keeps what there is")
		r, err := pgstore.New(db, c).Update(bg, "key", &store.Op{Limits: ages, Base: store.Hash(ages)})
		require.NoError(t, err)
		require.InDelta(t, 2, r.State.Level[0], 0.1)
		_, err = db.Exec(c.SQLDown())
		require.NoError(t, err)
		require.ErrorContains(t, call(kept, "key"), "Migrate")
	}
	err := pgstore.Migrate(bg, s.open(t, "", url.Values{"user": {"unknown_role"}}), pgstore.Config{})
	require.ErrorContains(t, err, "migrate")
}

// A role needs no more than Migrate says: it may make no schema, but has one.
func TestMigrate_InASchemaOfTheRole(t *testing.T) {
	s := theServer(t)
	own := fmt.Sprintf("own_%x", time.Now().UnixNano())
	s.exec(t, "CREATE ROLE "+own+" LOGIN")
	s.exec(t, "CREATE SCHEMA "+own+" AUTHORIZATION "+own)
	db := (&tables{server: s}).as(url.User(own)).open(t, "", nil)
	for range 2 {
		require.NoError(t, pgstore.Migrate(bg, db, pgstore.Config{Schema: own}))
	}
}

// A role that may do no more than it needs cannot migrate, although all is there.
func TestMigrate_ByARoleWithoutCreate(t *testing.T) {
	x := newTables(t, theServer(t))
	db := x.as(x.role(t)).open(t, "", nil)
	require.ErrorContains(t, pgstore.Migrate(bg, db, x.config), "permission denied")
	require.NoError(t, call(x.over(db), "key"))
}

// A process that starts, and runs Migrate, does not wait for those that write rows. So it does not
// make them wait either, even if it stops there.
func TestMigrate_LocksNoExistingTable(t *testing.T) {
	x := newTables(t, theServer(t))
	require.NoError(t, call(x.store(t), "key"))
	tx := x.begin(t, "UPDATE "+x.table()+" SET key = key")
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	require.NoError(t, pgstore.Migrate(ctx, x.open(t, "", nil), x.config))
	require.NoError(t, tx.Rollback())
}

// A process that stops in the middle of Migrate, or is cut off, does not keep the others from starting.
func TestMigrate_WaitsForNoStoppedProcess(t *testing.T) {
	s := theServer(t)
	c := pgstore.Config{Schema: fmt.Sprintf("stopped_%x", time.Now().UnixNano())}
	line := newProxy(t, s)
	line.set(faults{way: 300 * time.Millisecond})
	db := line.in(s).open(t, "", nil)
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- pgstore.Migrate(ctx, db, c) }()
	require.Eventually(t, func() bool {
		return s.one(t, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted") > 0
	}, patience, 10*time.Millisecond)
	line.set(faults{hang: true})
	require.NoError(t, pgstore.Migrate(ctx, s.open(t, "", nil), c))
	line.set(faults{})
	require.Error(t, <-stopped, "its transaction was ended")
}
