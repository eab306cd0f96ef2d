// Command fleetpg runs worker processes that call one API as fast as they may, and keep to one
// limit whose bucket is in PostgreSQL:
//
//	go run -C examples/fleetpg .
//
// Look at the table: the API refuses nothing, the quota is used, and all workers get the same. The
// example fleet shows the same with Redis, beside workers that do not share a bucket.
//
// The workers are processes of this program. It serves the API itself, and starts a PostgreSQL
// server of its own where one is installed. The server can be yours:
//
//	go run -C examples/fleetpg . -db postgres://user@localhost/database -rate 20
//
// Then the table dripfeed_buckets is made there, and stays. -kill kills workers in the middle of
// their work. With -strict the program ends with status 1 if the API has refused a call, or if one
// has failed.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/dripfeed/dripfeed/outbound/pgstore"
)

// params are the flags.
type params struct {
	Workers, Waiters, Kill int
	Rate, Burst, Seconds   float64
	db                     string
	strict                 bool
}

func main() {
	if text := os.Getenv(workerEnv); text != "" {
		signal.Ignore(os.Interrupt) // the first process ends the others
		if err := work(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "fleetpg: worker:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	status, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleetpg:", err)
	}
	os.Exit(status)
}

// run is the program, and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (status int, err error) {
	p, err := arguments(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	}
	if err != nil {
		return 2, err
	}
	s, err := newServer(ctx, p.db)
	if err != nil {
		return 2, err
	}
	defer s.end()
	db, err := sql.Open("pgx", s.url)
	if err != nil {
		return 2, errors.New("-db needs a URL such as postgres://user@localhost/database") // not the error, which may show a password
	}
	defer db.Close()
	if err := pgstore.Migrate(ctx, db, pgstore.Config{}); err != nil {
		return 2, err
	}
	r, err := tryFleet(ctx, p, s.url, stdout)
	if err != nil {
		return 1, err
	}
	if p.strict && (r.refused > 0 || r.failed > 0) {
		return 1, fmt.Errorf("%d calls refused and %d failed: %s", r.refused, r.failed, r.why)
	}
	return 0, nil
}

const usage = `Worker processes share one quota through PostgreSQL.

	go run -C examples/fleetpg . [flags]

The limit: outbound.Limit{Capacity: burst, LeakRate: rate}
A strict API is called, a leaky bucket with capacity
burst + rate * 10 ms + 0.25 that leaks rate per second.

`

func arguments(args []string, stderr io.Writer) (p params, err error) {
	f := flag.NewFlagSet("fleetpg", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, usage)
		f.PrintDefaults()
	}
	f.IntVar(&p.Workers, "workers", 10, "`N`, 1 to 100: worker processes")
	f.IntVar(&p.Waiters, "waiters", 2, "`N`, 1 to 1000: callers of each worker")
	f.Float64Var(&p.Rate, "rate", 50, "`N`, 0.01 to 100000: calls per second")
	f.Float64Var(&p.Burst, "burst", 1, "`N`, 1 to 1000000: calls at once")
	f.Float64Var(&p.Seconds, "seconds", 10, "`N`, 0.5 to 86400: how long")
	f.IntVar(&p.Kill, "kill", 0, "`N`, 0 to 1000: kill a worker (kill -9) and start\nit anew, so many times")
	f.StringVar(&p.db, "db", "", "use the server at this `URL`; else one is started")
	f.BoolVar(&p.strict, "strict", false, "exit with status 1 if a call was refused or failed")
	if err := f.Parse(args); err != nil {
		return p, err
	}
	if f.NArg() > 0 {
		return p, fmt.Errorf("%q is one argument too many", f.Arg(0))
	}
	for _, n := range []struct {
		flag             string
		is, least, large float64
	}{
		{"-workers", float64(p.Workers), 1, 100}, {"-waiters", float64(p.Waiters), 1, 1000},
		{"-rate", p.Rate, 0.01, 100_000}, {"-burst", p.Burst, 1, 1_000_000},
		{"-seconds", p.Seconds, 0.5, 86_400}, {"-kill", float64(p.Kill), 0, 1000},
	} {
		if !(n.is >= n.least && n.is <= n.large) { // not so for NaN
			return p, fmt.Errorf("%s needs a number from %v to %.0f, not %v", n.flag, n.least, n.large, n.is)
		}
	}
	return p, nil
}

// bucketKey is a key that no run before has used.
func bucketKey() string { return fmt.Sprintf("fleet:%d:%d", time.Now().UnixNano(), rand.Uint32()) }
