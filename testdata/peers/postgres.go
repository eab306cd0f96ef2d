package main

import (
	"database/sql"
	"fmt"
)

// postgresSharers lists the contenders with limits in PostgreSQL, and dripfeed in Redis for
// comparison. Ratios refer to the first.
func postgresSharers() []contender {
	redis := dripfeedShared()
	redis.name = subject + " in Redis"
	return []contender{upsert(), fillup(), rowLock(), dripfeedPostgres(), redis}
}

// postgresScenarios lists the scenarios through PostgreSQL, in the order of the table.
func postgresScenarios(o options, s servers) []scenario {
	var list []scenario
	for _, n := range []struct{ goroutines, keys int }{{1, 1}, {64, 1}, {256, 1}, {256, 1000}} {
		list = append(list, postgresDecision(o, s, n.goroutines, n.keys))
	}
	return list
}

// postgresDecision measures an admitted decision.
func postgresDecision(o options, s servers, goroutines, keys int) scenario {
	column := columnOf(goroutines, keys)
	return scenario{
		section: "A decision through PostgreSQL, µs",
		name:    "through PostgreSQL, " + column,
		metrics: []metric{{name: column, digits: 1, ratio: true}},
		offered: func(c contender) bool { return c.rows != nil || c.shared != nil && s.redis != nil },
		measure: func(c contender) (sample, error) {
			take, err := takeOf(c, s)
			if err != nil {
				return sample{}, err
			}
			_, ns, allocated, wrong, err := drive(o.Benchtime, take, goroutines, keys)
			return sample{[]float64{ns / 1e3}, wrong, &allocated}, err
		},
	}
}

// takeOf returns the decision of a contender in an empty server.
func takeOf(c contender, s servers) (func(key string) bool, error) {
	if c.rows == nil {
		rdb, err := s.redis.empty()
		if err != nil {
			return nil, err
		}
		return c.shared(rdb)
	}
	db, err := s.postgres.empty()
	if err != nil {
		return nil, err
	}
	return c.rows(db)
}

// upsert only counts. It is the least that a decision in a row needs. It never refuses.
func upsert() contender {
	return statement("floor: an upsert", false,
		"CREATE TABLE buckets (key text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 70)",
		"INSERT INTO buckets AS b VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = b.n + 1 RETURNING n")
}

// fillup is a leaky bucket in one statement, as Pecorino has it for Ruby. It only fills up: a
// caller of a full bucket gets no reservation.
func fillup() contender {
	return statement("a statement, as Pecorino's", true,
		"CREATE TABLE buckets (key text PRIMARY KEY, level float8 NOT NULL, at timestamptz NOT NULL) WITH (fillfactor = 70)",
		fmt.Sprintf(`INSERT INTO buckets AS b VALUES ($1, 1, clock_timestamp()) ON CONFLICT (key) DO UPDATE SET at = clock_timestamp(),
			level = least(%[1]d, greatest(0, b.level - %[1]d * extract(epoch FROM clock_timestamp() - b.at)::float8) + 1) RETURNING level`, plentyShared))
}

// statement is a contender whose decisions are one statement each.
func statement(name string, peer bool, table, text string) contender {
	return contender{
		name: name,
		peer: peer,
		rows: func(db *sql.DB) (func(string) bool, error) {
			_, err := db.Exec(table)
			return func(key string) bool {
				var n float64
				return db.QueryRow(text, key).Scan(&n) == nil
			}, err
		},
	}
}
