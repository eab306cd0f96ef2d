package rowstore

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Config is how a [Store] uses its rows. The zero value works.
type Config struct {
	// PlainKeys makes the keys of the rows those of the buckets, as the program wrote them,
	// where they have no more than 512 bytes and do not begin with "#". By default the store
	// hashes them, because some hold tokens, and databases log what they are asked.
	PlainKeys bool
	// Timeout is the longest that an operation takes before it fails. The calls that meet an
	// outage wait for so long. 0 or less: 1 s.
	Timeout time.Duration
	// Observe is called with each [leak.StoreEvent], in any goroutine, one call after the other. It
	// must not block. nil: the store tells nothing. For a [leak.EventDataLoss] the store remembers
	// a bucket for a minute after its last use if it uses new keys, and for 10 minutes if not.
	Observe func(leak.StoreEvent)
}

// Store keeps buckets in rows. It is safe for concurrent use. It has no goroutine while nobody
// asks it anything, forgets a key that nobody has used for 10 minutes, and needs no Close.
type Store struct {
	engine *engine.Engine // nil: the Store has no rows
	config Config
}

// errNoRows is what a Store without rows answers.
var errNoRows = fmt.Errorf("rowstore: %w: Rows", outbound.ErrNil)

// New returns a store on rows. It does no I/O. Nil rows are [outbound.ErrNil] at the first use.
func New(rows Rows, c Config) *Store {
	if c.Timeout <= 0 {
		c.Timeout = time.Second
	}
	s := &Store{config: c}
	if rows == nil {
		return s
	}
	config := engine.Config{Carrier: newCarrier(rows, &s.config), Timeout: c.Timeout, Observe: c.Observe}
	s.engine = engine.New(config)
	return s
}

// Update implements [leak.Store]. Its errors are ctx's own, those of the rows, and
// [outbound.ErrAway] while the rows do not answer.
func (s *Store) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if s == nil || s.engine == nil {
		return leak.Reply{}, errNoRows
	}
	return s.engine.Update(ctx, key, op)
}

// Stats returns what the store has counted, for metrics. It makes no trip and waits for none: it
// takes about a microsecond. A trip is a row's part in a call of Swap, or a call of Lock. Where
// several workers write a row, a decision takes several: those that have found it written or locked
// count, too.
func (s *Store) Stats() leak.StoreStats {
	if s == nil || s.engine == nil {
		return leak.StoreStats{}
	}
	return s.engine.Stats()
}

// Key returns the key of a bucket's row.
func (s *Store) Key(bucket string) []byte { return s.config.name(bucket) }
