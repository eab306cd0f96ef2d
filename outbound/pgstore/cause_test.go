package pgstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
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
		"0A000": false, "22P02": false, "26000": false, "42P05": false, "25001": false,
	} {
		err := r.explain(fmt.Errorf("wrapped: %w", state))
		require.Equal(t, away, errors.Is(err, store.ErrUnavailable), string(state))
		require.ErrorIs(t, err, state)
	}
	for _, err := range []error{errors.New("connection refused"), context.DeadlineExceeded, sql.ErrConnDone} {
		require.ErrorIs(t, r.explain(err), store.ErrUnavailable)
		require.ErrorIs(t, r.explain(err), err)
	}
	require.NotErrorIs(t, r.explain(errors.New("sql: database is closed")), store.ErrUnavailable)
	require.ErrorContains(t, r.explain(failure("42P01")), "Migrate")
	require.NoError(t, r.explain(nil))
}

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
