// Command fleetpg runs worker processes that call one API as fast as they may, and keep to one
// limit whose bucket is in PostgreSQL:
//
//	go run -C examples/fleetpg .
//
// Look at the table: the API refuses nothing, the quota is used, and all workers get the same. The
// example fleet shows the same with Redis, and also workers that share no bucket.
//
// The program serves the API, and starts a PostgreSQL server of its own where one is installed. The
// server can be yours:
//
//	go run -C examples/fleetpg . -db postgres://user@localhost/database -rate 20
//
// Then the table dripfeed_buckets is made there, and stays. -kill kills workers in the middle of
// their work.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/examples/internal/workers"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
)

const shows = "Worker processes share one quota through PostgreSQL."

var example = cli.Example{Name: "fleetpg", New: program, Usage: shows + `

	go run -C examples/fleetpg . [flags]

` + workers.APILimit}

func main() {
	workers.Work(bucket)
	example.Main()
}

// bucket returns the bucket that all workers share. A worker's calls wait in a queue around it.
func bucket(o *workers.Order, c *workers.Counter) (*outbound.Bucket, error) {
	db, err := sql.Open("pgx", o.Store)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(6)
	db.SetMaxIdleConns(6)
	c.Store = pgstore.New(db, pgstore.Config{})
	return outbound.NewSharedBucket(c, o.Bucket, o.Limit())
}

func program(flags *flag.FlagSet) cli.Run {
	var f workers.Fleet
	f.Flags(flags)
	url := flags.String("db", "", "use the server at this `URL`; else one is started")
	return func(ctx context.Context, out io.Writer) error {
		if *url == "" {
			dir, err := os.MkdirTemp("", "fleetpg")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			server, end, err := start(ctx, dir)
			if err != nil {
				return err
			}
			defer end()
			*url = server
		}
		if err := migrate(ctx, *url); err != nil {
			return cli.Wrong("-db: %v", err)
		}
		fmt.Fprintf(out, "%s\n%s\nlimit: %v\n\n", shows, &f, f.Limit())
		_, err := f.TryAll(ctx, out, workers.Order{Store: *url}, "shared")
		return err
	}
}

func migrate(ctx context.Context, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	return errors.Join(pgstore.Migrate(ctx, db, pgstore.Config{}), db.Close())
}
