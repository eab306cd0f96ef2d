package pgtest

import (
	"crypto/tls"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// An error that no wait cures is returned immediately, with what an operator needs to know.
func TestErrors_ThatNoWaitCures(t *testing.T) {
	x := newTables(t, theServer(t))
	nobody := fmt.Sprintf("nobody_%d", time.Now().UnixNano())
	x.exec(t, "CREATE ROLE "+nobody+" LOGIN")
	broken := newTables(t, theServer(t))
	broken.exec(t, "DROP TABLE "+broken.table())
	nothing := func(*pgstore.Config) {}
	for _, c := range []struct {
		name, state, says string
		tables            *tables
		config            func(*pgstore.Config)
	}{
		{"no table", "42P01", "Migrate", broken, nothing},
		{"no function", "42883", "Migrate", x, func(c *pgstore.Config) { c.Table = "other" }},
		{"no schema", "3F000", "Migrate", x, func(c *pgstore.Config) { c.Schema = "elsewhere" }},
		{"no grant", "42501", "permission", x.as(url.User(nobody)), nothing},
		{"no role", "28000", "does not exist", x.as(url.User("unknown_role")), nothing},
	} {
		for _, driver := range []string{"pgx", "postgres"} {
			t.Run(c.name+" "+driver, func(t *testing.T) {
				var seen events
				s := c.tables.over(c.tables.open(t, driver, nil), c.config, seen.observe)
				start := time.Now()
				err := call(s, "secret key")
				require.Less(t, time.Since(start), 10*time.Second)
				require.ErrorContains(t, err, c.says)
				require.NotErrorIs(t, err, store.ErrUnavailable)
				require.NotContains(t, err.Error(), "secret")
				var state interface{ SQLState() string }
				require.ErrorAs(t, err, &state)
				require.Equal(t, c.state, state.SQLState())
				require.ErrorIs(t, seen.await(t, store.EventDenied).Err, err)
				require.Empty(t, seen.of(store.EventDown))
			})
		}
	}
}

// A server that refuses connections is unavailable. A DB that is nil or closed is an error that no wait cures.
func TestErrors_MissingServer(t *testing.T) {
	x := &tables{server: &server{host: "127.0.0.1:1", user: url.User("postgres")}}
	for _, driver := range []string{"pgx", "postgres"} {
		dead := x.over(x.open(t, driver, nil), short)
		for said := false; !said; { // on a busy machine no answer may come in time
			err := call(dead, "key")
			require.ErrorIs(t, err, store.ErrUnavailable)
			said = strings.Contains(err.Error(), "refused")
		}
	}
	require.ErrorContains(t, call(pgstore.New(nil, pgstore.Config{}), "key"), "nil argument")
	require.ErrorContains(t, pgstore.Migrate(bg, nil, pgstore.Config{}), "nil argument")
	db := x.open(t, "", nil)
	require.NoError(t, db.Close())
	err := call(x.over(db), "key")
	require.ErrorContains(t, err, "closed")
	require.NotErrorIs(t, err, store.ErrUnavailable)
}

// A server whose certificate is of an unknown authority, and one without the TLS that the program asks for, is no
// outage.
func TestErrors_TLSThatNoWaitCures(t *testing.T) {
	web := httptest.NewTLSServer(nil)
	t.Cleanup(web.Close)
	for answer, says := range map[string][]string{"S": {"unknown authority"}, "N": {"SSL is not enabled", "refused TLS"}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				go func() {
					defer conn.Close()
					_, _ = io.ReadFull(conn, make([]byte, 8)) // the request for TLS
					_, _ = conn.Write([]byte(answer))
					_ = tls.Server(conn, web.TLS).Handshake() // fails
				}()
			}
		}()
		x := &tables{server: &server{host: l.Addr().String(), user: url.User("postgres")}}
		for _, driver := range []string{"pgx", "postgres"} {
			var seen events
			err := call(x.over(x.open(t, driver, url.Values{"sslmode": {"verify-full"}}), seen.observe), "key")
			require.True(t, slices.ContainsFunc(says, func(s string) bool { return strings.Contains(err.Error(), s) }), "%s: %v", driver, err)
			require.NotErrorIs(t, err, store.ErrUnavailable)
			seen.await(t, store.EventDenied)
			require.Empty(t, seen.of(store.EventDown))
		}
	}
}

// The program's own transactions have all connections of the pool.
func TestErrors_NoFreeConnection(t *testing.T) {
	x := newTables(t, theServer(t))
	db := x.open(t, "", nil)
	db.SetMaxOpenConns(2)
	s := x.over(db, short)
	require.NoError(t, call(s, "key"))
	var held []*sql.Tx
	for range 2 {
		tx, err := db.Begin()
		require.NoError(t, err)
		held = append(held, tx)
	}
	start := time.Now()
	require.ErrorIs(t, call(s, "key"), store.ErrUnavailable)
	require.Less(t, time.Since(start), 10*time.Second)
	for _, tx := range held {
		require.NoError(t, tx.Rollback())
	}
	require.Eventually(t, func() bool { return call(s, "key") == nil }, patience, 10*time.Millisecond)
}

// A token of 0 would be that of no row, and no process could write over it.
func TestTable_RefusesAnImpossibleToken(t *testing.T) {
	x := newTables(t, theServer(t))
	_, err := x.open(t, "", nil).Exec("INSERT INTO " + x.table() + " VALUES ('key', 0, 'x', now())")
	require.ErrorContains(t, err, "token_check")
}

// impatient is a [pq.Dialer] of connections on which the server has to answer in time.
type impatient struct{ patience time.Duration }

// Dial implements [pq.Dialer].
func (d impatient) Dial(network, address string) (net.Conn, error) {
	return d.DialTimeout(network, address, d.patience)
}

// DialTimeout implements [pq.Dialer].
func (d impatient) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, timeout)
	return bounded{c, d.patience}, err
}

// bounded is a connection on which no Read takes longer. lib/pq reads only while it waits for an answer.
type bounded struct {
	net.Conn
	patience time.Duration
}

func (b bounded) Read(p []byte) (int, error) {
	if err := b.SetReadDeadline(time.Now().Add(b.patience)); err != nil {
		return 0, err
	}
	return b.Conn.Read(p)
}

// The connections that are open fall silent for ever, and new ones work, as when another server has taken over. lib/pq
// waits for an answer whatever the context says, so its connections have to give up by themselves.
func TestLibPQ_ReadDeadlineEndsSilence(t *testing.T) {
	x := newTables(t, theServer(t))
	line := newProxy(t, x.server)
	connector, err := pq.NewConnector(line.in(x.server).url(nil))
	require.NoError(t, err)
	connector.Dialer(impatient{time.Second})
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	s := x.over(db, short)
	require.NoError(t, call(s, "key"))
	line.set(faults{swallowed: 1})
	for range 3 { // until all that the store may have out wait for answers that do not come
		each(20, func(i int) { require.ErrorIs(t, call(s, fmt.Sprint(i)), store.ErrUnavailable) })
		time.Sleep(time.Second / 2)
	}
	line.set(faults{})
	require.Eventually(t, func() bool { return call(s, "key") == nil }, patience, 10*time.Millisecond)
}
