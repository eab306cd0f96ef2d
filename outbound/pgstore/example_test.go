package pgstore_test

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// newQueue returns the queue of one of four processes. While PostgreSQL is unavailable, the process
// continues with a quarter of the limit.
func newQueue(ctx context.Context, db *sql.DB, log *slog.Logger) (*queue.Queue, error) {
	db.SetMaxOpenConns(6)
	db.SetMaxIdleConns(6)
	config := pgstore.Config{
		Observe: func(e store.StoreEvent) { log.Warn("postgres", "event", e.Kind, "error", e.Err) },
	}
	if err := pgstore.Migrate(ctx, db, config); err != nil {
		return nil, err
	}
	store := &fallback.Store{Store: pgstore.New(db, config), Share: 1.0 / 4}
	bucket, err := outbound.NewSharedBucket(store, "weather", outbound.PerSecond(50))
	if err != nil {
		return nil, err
	}
	return queue.New(bucket, queue.Config{MaxWait: time.Minute}), nil
}

// A process of a fleet of four.
func Example_fleet() {
	db, err := sql.Open("pgx", "postgres://localhost/limits") // with github.com/jackc/pgx/v5/stdlib
	if err != nil {
		slog.Error("no database", "error", err)
		return
	}
	defer db.Close()
	calls, err := newQueue(context.Background(), db, slog.Default())
	if err != nil {
		slog.Error("no queue", "error", err)
		return
	}
	_ = calls // all four processes share the limit
}

// A process that prunes the table once a day, if it has had many more keys than it has now.
func ExamplePrune() {
	db, err := sql.Open("pgx", "postgres://localhost/limits")
	if err != nil {
		slog.Error("no database", "error", err)
		return
	}
	defer db.Close()
	for range time.Tick(24 * time.Hour) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		deleted, err := pgstore.Prune(ctx, db, pgstore.Config{})
		cancel()
		slog.Info("pruned", "rows", deleted, "error", err)
	}
}
