// Command fleet runs worker processes that call one API as fast as they may, in three ways
// one after the other, and shows what becomes of the API's quota:
//
//	go run ./examples/fleet
//
// In the first way (none) nothing paces the calls: a worker calls, and tries again later what
// the API has refused. In the second (share) each worker keeps to its own part of the limit,
// in memory. The others cannot use what one leaves over, and the workers start apart, because
// in step the API would refuse most of them. In the third (shared) all keep to one limit,
// whose bucket is in Redis, and wait in a queue. Look at the last row of the table: the API
// refuses nothing, the quota is used, and all workers get the same.
//
// The workers are processes of this program. The program itself serves the API, and Redis as
// well: by a redis-server of its own if one is installed, else by a miniredis inside it. Both
// can be yours:
//
//	go run ./examples/fleet -redis redis://localhost:6379 -api http://localhost:8080/ -rate 20
//
// Every call tells the worker's name in the header X-Worker. The program calls a server of
// yours in the third way only, unless -mode asks for others, which do not keep to the
// server's limit. -kill kills workers in the middle of their work, and -json writes the
// result into a file. A remark says what has not gone as it should; with -strict a remark
// ends the program with status 1. See -h.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// workerEnv is set in the environment of a process that is to be a worker.
const workerEnv = "DRIPFEED_FLEET_WORKER"

func main() {
	if os.Getenv(workerEnv) != "" {
		// A Ctrl-C reaches all processes of a terminal. The first one ends the others.
		signal.Ignore(os.Interrupt)
		os.Exit(work(os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program, and returns its exit status: 0; 1 if a way could not be tried, or with
// -strict if there is any remark; 2 if it could not begin.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p, err := arguments(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "fleet:", err)
		return 2
	}
	table := stdout
	if p.json == "-" {
		table = stderr
	}
	d, err := newDemo(ctx, p)
	if err != nil {
		fmt.Fprintln(stderr, "fleet:", err)
		return 2
	}
	defer d.close()
	err = d.run(ctx, &screen{out: table, live: isTerminal(table)})
	if err == nil {
		err = d.outcome.write(p.json, stdout)
	}
	if err == nil {
		var remarks []string
		remarks, err = d.outcome.verdict()
		for _, remark := range remarks {
			fmt.Fprintln(stderr, remark)
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "fleet:", err)
		return 1
	}
	return 0
}
