package pgtest

import (
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// BenchmarkDecisions compares a decision with the least that a decision in PostgreSQL can be: an
// upsert of a number, which keeps no limit. Only the ratios within one run count.
func BenchmarkDecisions(b *testing.B) {
	x := newTables(b, theServer(b))
	x.exec(b, "CREATE TABLE "+x.config.Schema+".floor (key text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 70)")
	upsert := "INSERT INTO " + x.config.Schema + ".floor AS f VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = f.n + 1 RETURNING n"
	for _, c := range []struct{ callers, keys int }{{1, 1}, {64, 1}, {256, 1}, {256, 1000}} {
		for _, what := range []string{"floor", "pgstore"} {
			b.Run(fmt.Sprintf("%s/%d callers/%d keys", what, c.callers, c.keys), func(b *testing.B) {
				db := x.open(b, "", map[string][]string{"synchronous_commit": {"off"}})
				db.SetMaxOpenConns(16)
				db.SetMaxIdleConns(16)
				decide := floor(db, upsert)
				if what == "pgstore" {
					s := x.over(db)
					decide = func(key string) error {
						op := &leak.Op{Limits: []leak.Limit{{Name: "calls", Capacity: 1e9, Rate: 1e6}}, Action: leak.Book, Costs: []leak.Units{{1}}}
						_, err := s.Update(bg, key, op)
						return err
					}
				}
				for i := range c.keys { // each key is there, and known
					require.NoError(b, decide(fmt.Sprint("key ", i)))
				}
				b.ResetTimer()
				took := crowd(b, c.callers, c.keys, decide)
				b.StopTimer()
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
			})
		}
	}
}

func floor(db *sql.DB, upsert string) func(key string) error {
	return func(key string) error {
		var n int64
		return db.QueryRow(upsert, key).Scan(&n)
	}
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
