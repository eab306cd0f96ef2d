package rowstore

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Config is how a [Store] uses its rows. The zero value works.
type Config struct {
	// PlainKeys makes a row's key that of its bucket, if that has at most 512 bytes and does not
	// begin with "#". By default the store hashes them, because some hold tokens, and databases log
	// what they are asked.
	PlainKeys bool
	// Timeout is the longest that an operation takes before it fails. The calls that meet an outage
	// wait for so long. If it is 0 or less, it is 1 s.
	Timeout time.Duration
	// Observe is called with each [store.StoreEvent], in any goroutine, one call after the other. It
	// must not block. If it is nil, the store reports nothing. For a [store.EventDataLoss] the store
	// remembers a bucket for a minute after its last use if it uses new keys, and for 10 minutes if
	// not.
	Observe func(store.StoreEvent)
}

// Store keeps buckets in rows. It is safe for concurrent use. It has goroutines during operations
// only, and forgets a key after 10 minutes without use.
type Store struct {
	engine *engine.Engine // nil without rows
	config Config
}

// errNoRows is the error of a Store without rows.
var errNoRows = errors.New("rowstore: nil argument: Rows")

// New returns a store on rows. It does no I/O. If rows are nil, each use of the store fails.
func New(rows Rows, c Config) *Store {
	if c.Timeout <= 0 {
		c.Timeout = time.Second
	}
	s := &Store{config: c}
	if rows == nil {
		return s
	}
	s.engine = engine.New(engine.Config{
		Name: "rowstore", Carrier: newCarrier(rows, &s.config), Timeout: c.Timeout, Observe: c.Observe,
	})
	return s
}

// Update implements [store.Store]. Its errors are ctx's own, those of the rows, and
// [store.ErrUnavailable] while the rows do not answer.
func (s *Store) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if s == nil || s.engine == nil {
		return store.Reply{}, errNoRows
	}
	return s.engine.Update(ctx, key, op)
}

// Stats returns what the store has counted, for metrics. It takes about a microsecond, without a
// request. A request is a row's part in a call of Swap, or a call of Lock. If several processes
// write a row, a decision takes several: those that have found it written or locked count too.
func (s *Store) Stats() store.StoreStats {
	if s == nil || s.engine == nil {
		return store.StoreStats{}
	}
	return s.engine.Stats()
}

// Key returns the key of a bucket's row.
func (s *Store) Key(bucket string) []byte { return s.config.name(bucket) }
