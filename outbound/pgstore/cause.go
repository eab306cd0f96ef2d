package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
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
	case state == "" && (engine.Incurable(err) || noTLS(err)):
		return fmt.Errorf("pgstore: the connection is refused: %w", err)
	case state == "":
		return r.silent(err)
	case mixed(state, err.Error()):
		return &mixedError{state, err}
	case state == protocolViolation && misfit.MatchString(err.Error()):
		return fmt.Errorf("pgstore: the pooler's configuration does not fit: %w", err)
	case transient(state):
		return engine.Unavailable("pgstore: the server is unavailable", err)
	case state == "42P01" || state == "42883" || state == "3F000": // no table, function or schema
		return fmt.Errorf("pgstore: what Migrate makes is missing: %w", err)
	default:
		return fmt.Errorf("pgstore: %w", err)
	}
}

// protocolViolation is the SQLSTATE of an unexpected message, and of most errors of pgbouncer.
const protocolViolation = "08P01"

// misfit matches what pgbouncer says if its configuration is the cause.
var misfit = regexp.MustCompile("statement pooling mode|no such (database|user)|bouncer config error|unsupported startup parameter|SSL required")

// mixed reports whether the server had another statement prepared, or none, when it got the
// parameters of one. The texts that this package sends have none of these faults by themselves.
func mixed(state, text string) bool {
	switch state {
	case "26000", "42P05": // there is no such statement, or there is one already
		return true
	case "22P02", "22P03", "22021": // the parameters are those of another statement
		return true
	}
	return state == protocolViolation && strings.Contains(text, "bind message")
}

// mixedError is such an error. It hides the words of the server: they may show parameters, and so
// keys.
type mixedError struct {
	state string
	cause error
}

func (e *mixedError) Error() string {
	return "pgstore: a pooler mixes prepared statements (SQLSTATE " + e.state + "): set binary_parameters=yes for lib/pq, default_query_exec_mode=exec for pgx"
}

func (e *mixedError) Unwrap() error { return e.cause }

// noTLS reports whether the server does not offer the TLS that the program asks for. Neither driver
// has a value for it: these are the words of lib/pq and of pgx.
func noTLS(err error) bool {
	return strings.Contains(err.Error(), "SSL is not enabled on the server") || strings.Contains(err.Error(), "server refused TLS connection")
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
