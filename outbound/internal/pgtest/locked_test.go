package pgtest

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// lock locks a row as somebody does by hand, until the transaction ends.
func (x *tables) lock(t *testing.T, key []byte) *sql.Tx {
	tx, err := x.open(t, "", nil).Begin()
	require.NoError(t, err)
	_, err = tx.Exec("SELECT FROM "+x.table()+" WHERE key = $1 FOR UPDATE", key)
	require.NoError(t, err)
	return tx
}

// Somebody holds a row's lock by hand.
func TestLock_DelaysItsOwnKeyOnly(t *testing.T) {
	x := newTables(t, theServer(t))
	var told events
	s := x.over(x.open(t, "", nil), func(c *pgstore.Config) { c.Timeout = 2 * time.Second }, told.observe)
	ask := func(i int) error {
		_, err := s.Update(bg, fmt.Sprint(i), calls(1))
		return err
	}
	const keys = 40
	each(keys, func(i int) { require.NoError(t, ask(i)) })
	tx := x.lock(t, s.Key("0"))
	stuck := make(chan error)
	go func() { stuck <- ask(0) }()
	start := time.Now()
	rounds := 0
	for time.Since(start) < time.Second {
		each(keys-1, func(i int) { require.NoError(t, ask(1+i)) })
		rounds++
	}
	require.Greater(t, rounds, 1)
	err := <-stuck
	require.ErrorContains(t, err, "keeps the row locked")
	require.NotErrorIs(t, err, store.ErrUnavailable)
	require.NoError(t, tx.Rollback())
	require.NoError(t, ask(0))
	require.Empty(t, told.of(store.EventDown))
	require.InDelta(t, 2, x.level(t, "0"), 0.1)
}

// A worker that stops while it has a row's lock is thrown out.
func TestLock_OfAProcessThatStops(t *testing.T) {
	x := newTables(t, theServer(t))
	s := x.store(t)
	_, err := s.Update(bg, "key", calls(1))
	require.NoError(t, err)
	tx, err := x.open(t, "", nil).Begin()
	require.NoError(t, err)
	var token, clock int64
	var state []byte
	require.NoError(t, tx.QueryRow("SELECT token, state, clock FROM "+x.config.Schema+".dripfeed_buckets_lock_1($1, '100', '500', false)", s.Key("key")).Scan(&token, &state, &clock))
	_, err = s.Update(bg, "key", calls(1))
	require.NoError(t, err)
	require.Error(t, tx.Commit(), "its transaction was ended")
	require.InDelta(t, 2, x.level(t, "key"), 0.1)
}

// Somebody makes a row by hand, as one who restores the table, and does not commit.
func TestLock_OfANewRowDelaysItsOwnKeyOnly(t *testing.T) {
	x := newTables(t, theServer(t))
	var told events
	s := x.over(x.open(t, "", nil), short, told.observe)
	ask := func(i int) error {
		_, err := s.Update(bg, fmt.Sprint(i), calls(1))
		return err
	}
	const keys = 20
	each(keys, func(i int) { require.NoError(t, ask(1+i)) })
	tx, err := x.open(t, "", nil).Begin()
	require.NoError(t, err)
	_, err = tx.Exec("INSERT INTO "+x.table()+" VALUES ($1, 1, 'x', now())", s.Key("0"))
	require.NoError(t, err)
	stuck := make(chan error, 1)
	go func() { stuck <- ask(0) }()
	for rounds := 0; ; rounds++ {
		each(keys, func(i int) { require.NoError(t, ask(1+i)) })
		select {
		case err = <-stuck:
			require.Greater(t, rounds, 1)
			require.ErrorContains(t, err, "keeps the row locked")
			require.NotErrorIs(t, err, store.ErrUnavailable)
			require.NoError(t, tx.Rollback())
			require.NoError(t, ask(0))
			require.Empty(t, told.of(store.EventDown))
			return
		default:
		}
	}
}

// A row that is not there cannot be locked. The clock is read all the same.
func TestLock_OfAMissingRow(t *testing.T) {
	x := newTables(t, theServer(t))
	require.Equal(t, 1., x.one(t, "SELECT count(*) FROM "+x.config.Schema+".dripfeed_buckets_lock_1('key', '100', '100', false) WHERE token = 0 AND clock > 0"))
}

// The server finds out only when it commits that it cannot: then nothing was written.
func TestLock_CommitThatFails(t *testing.T) {
	for _, driver := range []string{"pgx", "postgres"} {
		x := newTables(t, theServer(t))
		s := x.over(x.open(t, driver, nil))
		_, err := s.Update(bg, "key", calls(1))
		require.NoError(t, err)
		x.exec(t, "CREATE FUNCTION "+x.config.Schema+".fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$")
		x.exec(t, "CREATE CONSTRAINT TRIGGER fail AFTER UPDATE ON "+x.table()+" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION "+x.config.Schema+".fail()")
		_, err = s.Update(bg, "key", calls(1))
		require.ErrorContains(t, err, "not this one")
	}
}
