// Command example runs a fleet of worker processes whose jobs, in River, share one quota of an API.
// The quota's bucket is in River's own PostgreSQL:
//
//	go run -C outbound/riverjobs ./example
//
// Look at the table: all jobs succeed without a refusal by the API, and each runs about twice. Jobs
// of another kind have no limit, and do not wait for those that have one. With -at-insert the jobs
// get their reservations when they are inserted, and run about once.
//
// The workers are processes of this program. It serves the API itself, and starts a PostgreSQL
// server of its own where one is installed. The server can be yours:
//
//	go run -C outbound/riverjobs ./example -db postgres://user@localhost/database
//
// Then it makes a schema there, and drops it at the end. -kill kills a worker in the middle of its
// work: River rescues its jobs within half a minute. With -strict the program ends with status 1 if
// the API has refused a call, or if a job has failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/dripfeed/dripfeed/outbound/riverjobs/internal/pgserver"
)

// params are the flags.
type params struct {
	Processes, Workers, Jobs, Others int
	Rate                             float64
	AtInsert, kill, strict           bool
	db                               string
}

func main() {
	if text := os.Getenv(workerEnv); text != "" {
		signal.Ignore(os.Interrupt) // the first process ends the workers
		if err := work(text, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "example: worker:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	status, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
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
	url := p.db
	if url == "" {
		if err := pgserver.Installed(); err != nil {
			return 2, fmt.Errorf("%w; -db names none either", err)
		}
		s, err := pgserver.Start(ctx)
		if err != nil {
			return 2, err
		}
		defer s.Stop()
		url = s.URL
	}
	db, err := pgserver.Open(ctx, url, fmt.Sprintf("riverjobs_example_%d", time.Now().UnixNano()))
	if err != nil {
		return 2, err
	}
	defer db.Close()
	if err := db.Create(ctx); err != nil {
		return 2, err
	}
	defer db.Drop()
	r, err := tryFleet(ctx, p, db, stdout)
	if err != nil {
		return 1, err
	}
	if p.strict && (r.refused > 0 || r.failed > 0) {
		return 1, fmt.Errorf("%d calls refused, and %d jobs with errors", r.refused, r.failed)
	}
	return 0, nil
}

const usage = `Worker processes whose jobs share one quota, in River.

	go run -C outbound/riverjobs ./example [flags]

The limit: outbound.PerSecond(rate)
The API is strict: it counts the calls of any second, and
refuses with 429.

`

func arguments(args []string, stderr io.Writer) (p params, err error) {
	f := flag.NewFlagSet("example", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, usage)
		f.PrintDefaults()
	}
	f.IntVar(&p.Processes, "processes", 3, "`N`, 1 to 50: worker processes")
	f.IntVar(&p.Workers, "workers", 50, "`N`, 1 to 1000: jobs that each works at a time")
	f.IntVar(&p.Jobs, "jobs", 200, "`N`, 1 to 100000: jobs that call the API")
	f.IntVar(&p.Others, "others", 40, "`N`, 0 to 100000: jobs without a call")
	f.Float64Var(&p.Rate, "rate", 20, "`N`, 1 to 10000: calls per second")
	f.BoolVar(&p.AtInsert, "at-insert", false, "book the reservations of jobs when they are inserted")
	f.BoolVar(&p.kill, "kill", false, "kill a worker (kill -9) in the middle of its work")
	f.StringVar(&p.db, "db", "", "use the server at this `URL`; else one is started")
	f.BoolVar(&p.strict, "strict", false, "exit with status 1 if a call was refused or a job\nhas failed")
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
		{"-processes", float64(p.Processes), 1, 50}, {"-workers", float64(p.Workers), 1, 1000},
		{"-jobs", float64(p.Jobs), 1, 100_000}, {"-others", float64(p.Others), 0, 100_000}, {"-rate", p.Rate, 1, 10_000},
	} {
		if !(n.is >= n.least && n.is <= n.large) { // not so for NaN
			return p, fmt.Errorf("%s needs a number from %v to %.0f, not %v", n.flag, n.least, n.large, n.is)
		}
	}
	return p, nil
}
