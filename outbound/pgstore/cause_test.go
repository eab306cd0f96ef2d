package pgstore

import (
	"context"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// failure is an error as drivers return it.
type failure string

func (f failure) Error() string    { return "the server says " + string(f) }
func (f failure) SQLState() string { return string(f) }

// An error matches ErrUnavailable if a wait may cure it, and wraps its cause.
func TestErrors_ThatAWaitMayCure(t *testing.T) {
	r := &rows{db: new(sql.DB)}
	for state, away := range map[failure]bool{
		"08006": true, "25006": true, "25P03": true, "25P04": true, "40001": true, "40P01": true, "53300": true, "53100": true,
		"55P03": true, "57014": true, "57P01": true, "57P03": true,
		"42P01": false, "42883": false, "3F000": false, "42501": false, "28000": false, "28P01": false, "3D000": false,
		"0A000": false, "22P02": false, "26000": false, "42P05": false, "25001": false, "08P01": true, "22021": false,
	} {
		err := r.explain(fmt.Errorf("wrapped: %w", state))
		require.Equal(t, away, errors.Is(err, store.ErrUnavailable), string(state))
		require.ErrorIs(t, err, state)
	}
	for _, err := range []error{errors.New("connection refused"), context.DeadlineExceeded, sql.ErrConnDone, &net.OpError{Op: "remote error", Err: errors.New("tls: bad record MAC")}} {
		require.ErrorIs(t, r.explain(err), store.ErrUnavailable)
		require.ErrorIs(t, r.explain(err), err)
	}
	for _, err := range []error{
		errors.New("sql: database is closed"), x509.UnknownAuthorityError{}, errors.New("pq: SSL is not enabled on the server"),
		errors.New("tls error: server refused TLS connection"), &net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")},
	} {
		require.NotErrorIs(t, r.explain(err), store.ErrUnavailable)
		require.ErrorIs(t, r.explain(err), err)
	}
	require.ErrorContains(t, r.explain(failure("42P01")), "Migrate")
	require.NoError(t, r.explain(nil))
}

// A pooler that mixes prepared statements, or begins no transaction, is named with what to set. The
// server's words may show parameters, and so keys.
func TestErrors_OfAPooler(t *testing.T) {
	r := &rows{db: new(sql.DB)}
	for text, want := range map[string]string{
		"pq: unnamed prepared statement does not exist (26000)":                                                 "binary_parameters=yes",
		`ERROR: prepared statement "stmtcache_a key" already exists (SQLSTATE 42P05)`:                           "default_query_exec_mode=exec",
		`pq: malformed array literal: "a key" (22P02)`:                                                          "mixes prepared statements",
		`ERROR: invalid byte sequence for encoding "UTF8": a key (SQLSTATE 22021)`:                              "mixes prepared statements",
		`ERROR: bind message supplies 4 parameters, but prepared statement "a key" requires 7 (SQLSTATE 08P01)`: "mixes prepared statements",
		"FATAL: transaction blocks not allowed in statement pooling mode (SQLSTATE 08P01)":                      "configuration does not fit",
		"pq: no such database: nodatabase (08P01)":                                                              "configuration does not fit",
		"FATAL: query_wait_timeout (SQLSTATE 08P01)":                                                            "the server is unavailable",
		"FATAL: server login has been failing, try again later (server_login_retry) (SQLSTATE 08P01)":           "the server is unavailable",
	} {
		state := regexp.MustCompile(`[0-9A-Z]{5}\)$`).FindString(text)[:5]
		err := r.explain(said{failure(state), text})
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "a key")
		require.Equal(t, want == "the server is unavailable", errors.Is(err, store.ErrUnavailable))
		require.Equal(t, state, stateOf(err))
	}
}

// said is a failure with the words of a driver.
type said struct {
	failure
	text string
}

func (s said) Error() string { return s.text }

// misspelled is a driver whose DSN cannot be parsed.
type misspelled string

func (misspelled) Driver() driver.Driver { return nil }

func (m misspelled) Connect(context.Context) (driver.Conn, error) {
	_, err := url.Parse(string(m))
	return nil, fmt.Errorf("wrapped: %w", err)
}

// No error shows the DSN. Those of lib/pq show all of it if it is not a URL.
func TestErrors_HideAURL(t *testing.T) {
	db := sql.OpenDB(misspelled("postgres://u:p%ss@h/db"))
	defer db.Close()
	s := New(db, Config{})
	_, err := s.Update(context.Background(), "key", &store.Op{Limits: []store.Limit{{Capacity: 1, Rate: 1}}})
	for _, err := range []error{err, Migrate(context.Background(), db, Config{})} {
		require.ErrorContains(t, err, "as a URL")
		require.NotContains(t, err.Error(), "%ss")
		require.NotErrorIs(t, err, store.ErrUnavailable)
		require.False(t, errors.As(err, new(*url.Error)))
	}
	require.NotContains(t, fmt.Sprintf("%+v", s.Stats()), "%ss")
}
