package pgtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// limit is one that no benchmark exhausts.
var limit = []leak.Limit{{Name: "calls", Capacity: 1e9, Rate: 1e6}}

// decision returns a decision of a store.
func decision(s leak.Store) func(key string) error {
	return func(key string) error {
		_, err := s.Update(bg, key, &leak.Op{Limits: limit, Action: leak.Book, Costs: []leak.Units{{1}}})
		return err
	}
}

// BenchmarkDecisions compares a decision with others, in PostgreSQL and in Redis. Only the ratios
// within one run count.
//
// floor is the least that a decision in PostgreSQL can be: an upsert of a number, which keeps no
// limit. statement is a leaky bucket in one statement, which refuses nothing and knows no queue,
// no hold and no report. lock is a store as the contract's example has it, on a row that it locks
// in a transaction: it knows all that, and is charged twice if a reply is lost.
func BenchmarkDecisions(b *testing.B) {
	x := newTables(b, theServer(b))
	in := x.config.Schema + "."
	x.exec(b, "CREATE TABLE "+in+"floor (key text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 70)")
	x.exec(b, "CREATE TABLE "+in+"statement (key text PRIMARY KEY, level float8 NOT NULL, at timestamptz NOT NULL) WITH (fillfactor = 70)")
	x.exec(b, "CREATE TABLE "+in+"lock (key text PRIMARY KEY, state bytea NOT NULL) WITH (fillfactor = 70)")
	contenders := []struct {
		name string
		new  func(b *testing.B, db *sql.DB) func(key string) error
	}{
		{"floor", func(_ *testing.B, db *sql.DB) func(string) error {
			return statement(db, "INSERT INTO "+in+"floor AS f VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = f.n + 1 RETURNING n")
		}},
		{"statement", func(_ *testing.B, db *sql.DB) func(string) error {
			return statement(db, "INSERT INTO "+in+"statement AS s VALUES ($1, 1, clock_timestamp()) ON CONFLICT (key) DO UPDATE SET at = clock_timestamp(),"+
				" level = least(1e9, greatest(0, s.level - 1e6 * extract(epoch FROM clock_timestamp() - s.at)::float8) + 1) RETURNING level")
		}},
		{"lock", func(_ *testing.B, db *sql.DB) func(string) error { return decision(&lockStore{db, in + "lock"}) }},
		{"pgstore", func(_ *testing.B, db *sql.DB) func(string) error { return decision(x.over(db)) }},
		{"redisstore", func(b *testing.B, _ *sql.DB) func(string) error {
			return decision(redisstore.New(redistest.Shared(b).Client(b), redisstore.Config{Timeout: patience}))
		}},
	}
	for _, n := range []struct{ callers, keys int }{{1, 1}, {64, 1}, {256, 1}, {256, 1000}} {
		for _, c := range contenders {
			b.Run(fmt.Sprintf("%d callers/%d keys/%s", n.callers, n.keys, c.name), func(b *testing.B) {
				db := x.open(b, "", map[string][]string{"synchronous_commit": {"off"}})
				db.SetMaxOpenConns(16)
				db.SetMaxIdleConns(16)
				decide := c.new(b, db)
				for i := range n.keys { // each key is there, and known
					require.NoError(b, decide(fmt.Sprint("key ", i)))
				}
				b.ResetTimer()
				took := crowd(b, n.callers, n.keys, decide)
				b.StopTimer()
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
			})
		}
	}
}

// statement returns a decision that is one statement.
func statement(db *sql.DB, text string) func(key string) error {
	return func(key string) error {
		var level float64
		return db.QueryRow(text, key).Scan(&level)
	}
}

// lockStore is the store that the contract's example is, on rows.
type lockStore struct {
	db    *sql.DB
	table string
}

func (s *lockStore) Update(ctx context.Context, key string, op *leak.Op) (r leak.Reply, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return r, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	var state []byte
	var clock int64
	var bucket leak.Stored
	err = tx.QueryRow("SELECT state FROM "+s.table+" WHERE key = $1 FOR UPDATE", key).Scan(&state)
	if err == nil {
		err = bucket.UnmarshalBinary(state)
	} else if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	if err == nil {
		err = tx.QueryRow("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Scan(&clock)
	}
	if err != nil {
		return r, err
	}
	if r = op.Apply(&bucket, time.Duration(clock)*time.Microsecond); !r.Changed {
		return r, nil
	}
	state, _ = bucket.AppendBinary(nil) // never fails
	if _, err = tx.Exec("INSERT INTO "+s.table+" VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET state = $2", key, state); err != nil {
		return r, err
	}
	return r, tx.Commit()
}

// crowd has callers make b.N decisions, and returns how long each took, in order.
func crowd(b *testing.B, callers, keys int, decide func(key string) error) []time.Duration {
	var next atomic.Int64
	var mu sync.Mutex
	var all []time.Duration
	each(callers, func(int) {
		var mine []time.Duration
		for {
			i := next.Add(1)
			if i > int64(b.N) {
				break
			}
			begun := time.Now()
			if err := decide(fmt.Sprint("key ", i%int64(keys))); err != nil {
				b.Error(err)
			}
			mine = append(mine, time.Since(begun))
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, mine...)
	})
	slices.Sort(all)
	return all
}
