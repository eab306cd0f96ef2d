package pgtest

import (
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// short makes a store give up soon.
func short(c *pgstore.Config) { c.Timeout = time.Second }

func TestErrors_ThatNoWaitCures(t *testing.T) {
	x := newTables(t, theServer(t))
	nobody := fmt.Sprintf("nobody_%d", time.Now().UnixNano())
	x.exec(t, "CREATE ROLE "+nobody+" LOGIN")
	worker := x.role(t)
	broken := newTables(t, theServer(t))
	broken.exec(t, "DROP TABLE "+broken.table())
	for _, c := range []struct {
		name, state, says string
		tables            *tables
		config            func(*pgstore.Config)
	}{
		{"no table", "42P01", "Migrate", broken, short},
		{"no function", "42883", "Migrate", x, func(c *pgstore.Config) { c.Table = "other" }},
		{"no schema", "3F000", "Migrate", x, func(c *pgstore.Config) { c.Schema = "elsewhere" }},
		{"no grant", "42501", "permission", x.as(url.User(nobody)), short},
		{"no role", "28000", "does not exist", x.as(url.User("unknown_role")), short},
	} {
		for _, driver := range []string{"pgx", "postgres"} {
			t.Run(c.name+" "+driver, func(t *testing.T) {
				var told events
				s := x.over(c.tables.open(t, driver, nil), func(k *pgstore.Config) {
					k.Schema, k.Timeout = c.tables.config.Schema, 20*time.Second
					c.config(k)
					k.Timeout = 20 * time.Second // the error comes at once
				}, told.observe)
				start := time.Now()
				_, err := s.Update(bg, "secret key", calls(1))
				require.Less(t, time.Since(start), 10*time.Second)
				require.ErrorContains(t, err, c.says)
				require.NotErrorIs(t, err, store.ErrUnavailable)
				require.NotContains(t, err.Error(), "secret")
				var state interface{ SQLState() string }
				require.ErrorAs(t, err, &state)
				require.Equal(t, c.state, state.SQLState())
				require.ErrorIs(t, told.await(t, store.EventDenied).Err, err)
				require.Empty(t, told.of(store.EventDown))
			})
		}
	}
	_, err := x.over(x.as(worker).open(t, "", nil)).Update(bg, "key", calls(1))
	require.NoError(t, err)
}

func TestErrors_MissingServer(t *testing.T) {
	for driver, host := range map[string]string{"pgx": "127.0.0.1:1", "postgres": "127.0.0.1:1"} {
		s := &server{host: host, user: url.User("postgres")}
		x := &tables{server: s}
		dead := x.over(s.open(t, driver, nil), short)
		for said := false; !said; { // a busy machine may hear nothing in time
			_, err := dead.Update(bg, "key", calls(1))
			require.ErrorIs(t, err, store.ErrUnavailable)
			said = strings.Contains(err.Error(), "refused")
		}
	}
	var none *sql.DB
	_, err := pgstore.New(none, pgstore.Config{}).Update(bg, "key", calls(1))
	require.ErrorContains(t, err, "nil argument")
	require.ErrorContains(t, pgstore.Migrate(bg, nil, pgstore.Config{}), "nil argument")
	db, err := sql.Open("pgx", "postgres://127.0.0.1:1/")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = pgstore.New(db, pgstore.Config{}).Update(bg, "key", calls(1))
	require.ErrorContains(t, err, "closed")
	require.NotErrorIs(t, err, store.ErrUnavailable)
}

// The program's own transactions have all connections of the pool.
func TestErrors_NoFreeConnection(t *testing.T) {
	x := newTables(t, theServer(t))
	db := x.open(t, "", nil)
	db.SetMaxOpenConns(2)
	s := x.over(db, short)
	_, err := s.Update(bg, "key", calls(1))
	require.NoError(t, err)
	var held []*sql.Tx
	for range 2 {
		tx, err := db.Begin()
		require.NoError(t, err)
		held = append(held, tx)
	}
	start := time.Now()
	_, err = s.Update(bg, "key", calls(1))
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.Less(t, time.Since(start), 10*time.Second)
	for _, tx := range held {
		require.NoError(t, tx.Rollback())
	}
	require.Eventually(t, func() bool {
		_, err := s.Update(bg, "key", calls(1))
		return err == nil
	}, patience, 10*time.Millisecond)
}

// A token of 0 would be that of no row, and no process could write over it.
func TestTable_RefusesAnImpossibleToken(t *testing.T) {
	x := newTables(t, theServer(t))
	_, err := x.open(t, "", nil).Exec("INSERT INTO " + x.table() + " VALUES ('key', 0, 'x', now())")
	require.ErrorContains(t, err, "token_check")
}
