package pgstore

import (
	"database/sql"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Config is how a store uses its database. The zero value works. Two programs share buckets if
// their Schema, Table and PlainKeys are the same. If Schema is empty, the search_path of their
// roles has to begin with the same schema too: by default a role whose own schema exists has that
// first.
type Config struct {
	// Schema is the schema of the table, and Migrate makes it. If it is empty, it is the first of
	// the role's search_path that exists.
	Schema string
	// Table is the name of the table. The names of its index and functions begin with it. If it is
	// empty, it is dripfeed_buckets.
	Table string
	// PlainKeys makes the keys in the table those of the buckets, as [rowstore.Config] says.
	PlainKeys bool
	// Timeout is the longest that an operation takes before it fails, the wait for a connection
	// included. The server ends a session that stops while it has a row for itself, after half of
	// it. If it is 0 or less, it is 1 s.
	Timeout time.Duration
	// Durable makes each decision wait for the disk, and for synchronous replicas, as the server's
	// synchronous_commit says. Then a crash loses nothing. Without it the server may lose what was
	// charged in the last 0.6 s before a crash.
	Durable bool
	// Observe is called with each event, in any goroutine, one call after the other. It must not
	// block. If it is nil, the store reports nothing.
	Observe func(store.StoreEvent)
}

// errNoDB is the error of a store without a DB.
var errNoDB = errors.New("pgstore: nil argument: DB")

// New returns a store in a database whose table Migrate or Config.SQL has made. It does no I/O. The
// DB stays yours, to configure and to close. The store has at most six of its connections at a
// time. If db is nil, each use of the store fails.
func New(db *sql.DB, c Config) *rowstore.Store {
	rc := rowstore.Config{PlainKeys: c.PlainKeys, Timeout: c.Timeout, Observe: c.Observe}
	if db == nil {
		return rowstore.New(nil, rc)
	}
	if c.Timeout <= 0 {
		c.Timeout = time.Second // as rowstore takes it
	}
	return rowstore.New(newRows(db, &c), rc)
}
