package pgserver

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
)

// Database is a schema with River's tables, and with that of the buckets.
type Database struct {
	URL, Schema string
	Pool        *pgxpool.Pool // of River
	Buckets     *sql.DB       // of the store, which must not wait for River's connections
}

// Open connects to a schema, which need not exist.
func Open(ctx context.Context, url, schema string) (*Database, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("-db needs a URL such as postgres://user@localhost/database") // not the error, which may show a password
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	buckets := stdlib.OpenDB(*config.ConnConfig)
	buckets.SetMaxOpenConns(6)
	return &Database{url, schema, pool, buckets}, nil
}

// Close closes the connections.
func (d *Database) Close() {
	d.Pool.Close()
	_ = d.Buckets.Close()
}

// Create makes the schema and the tables.
func (d *Database) Create(ctx context.Context) error {
	if err := pgstore.Migrate(ctx, d.Buckets, pgstore.Config{Schema: d.Schema}); err != nil {
		return err
	}
	m, err := rivermigrate.New(riverpgxv5.New(d.Pool), &rivermigrate.Config{Schema: d.Schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// Drop removes the schema.
func (d *Database) Drop() {
	_, _ = d.Pool.Exec(context.Background(), "DROP SCHEMA "+d.Schema+" CASCADE") // a server of our own may be gone
}
