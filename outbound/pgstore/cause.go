package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
)

// lockNotAvailable is the SQLSTATE of a lock that was awaited for too long.
const lockNotAvailable = "55P03"

// stateOf returns the SQLSTATE of an error, or "" if the server has not answered. The errors of pgx
// and of lib/pq have the same method for it.
func stateOf(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// explain returns an error as a Rows returns it: it matches ErrUnavailable if a wait may cure it.
func (r *rows) explain(err error) error {
	if err == nil {
		return nil
	}
	if notURL(err) {
		return fmt.Errorf("pgstore: %w", errNotURL)
	}
	switch state := stateOf(err); {
	case state == "" && err.Error() == "sql: database is closed": // database/sql has no value for it
		return fmt.Errorf("pgstore: %w", err)
	case state == "":
		return r.silent(err)
	case transient(state):
		return engine.Unavailable("pgstore: the server is unavailable", err)
	case state == "42P01" || state == "42883" || state == "3F000": // no table, function or schema
		return fmt.Errorf("pgstore: what Migrate makes is missing: %w", err)
	default:
		return fmt.Errorf("pgstore: %w", err)
	}
}

// errNotURL takes the place of an error whose words are the data source name, or a part of it. That
// may hold a password.
var errNotURL = errors.New("the data source name cannot be parsed as a URL")

// notURL reports whether a driver could not parse the URL of the database. No wait cures that.
func notURL(err error) bool {
	var parse *url.Error
	return errors.As(err, &parse) && parse.Op == "parse"
}

// transient reports whether a wait may cure the error of a SQLSTATE.
func transient(state string) bool {
	for _, prefix := range []string{
		"08",           // no connection
		"25006",        // it only reads: a replica that may be promoted
		"25P03",        // the transaction was idle for too long
		"25P04",        // or took too long
		"40001", "40P", // another transaction was in the way
		"53",             // no connection, memory or disk left
		lockNotAvailable, //
		"57",             // it shuts down, starts, or the statement was ended
	} {
		if strings.HasPrefix(state, prefix) {
			return true
		}
	}
	return false
}

// silent returns the error of a server that has not answered.
func (r *rows) silent(err error) error {
	if s := r.db.Stats(); s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections && errors.Is(err, context.DeadlineExceeded) {
		return engine.Unavailable("pgstore: no connection is free", fmt.Errorf("the DB has %d, and all are in use", s.MaxOpenConnections))
	}
	return engine.Unavailable("pgstore: the server is unavailable", err)
}
