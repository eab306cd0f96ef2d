package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/dripfeed/dripfeed/outbound/pgstore"
)

// database is a schema with River's tables, and with that of the buckets.
type database struct {
	url, schema string
	pool        *pgxpool.Pool // of River
	buckets     *sql.DB       // of the store, which must not wait for River's connections
}

func open(ctx context.Context, url, schema string) (*database, error) {
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
	return &database{url, schema, pool, buckets}, nil
}

func (d *database) close() {
	d.pool.Close()
	_ = d.buckets.Close()
}

// create makes the schema and the tables.
func (d *database) create(ctx context.Context) error {
	if err := pgstore.Migrate(ctx, d.buckets, pgstore.Config{Schema: d.schema}); err != nil {
		return err
	}
	m, err := rivermigrate.New(riverpgxv5.New(d.pool), &rivermigrate.Config{Schema: d.schema})
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// drop removes the schema.
func (d *database) drop() {
	_, _ = d.pool.Exec(context.Background(), "DROP SCHEMA "+d.schema+" CASCADE") // a server of our own may be gone
}
