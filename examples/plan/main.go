// Command plan tells how long calls take under limits, before anybody makes them:
//
//	go run ./examples/plan -limit 100/s,50000/h -calls 100000 -workers 50 -callers 8 -latency 150ms
//
// It runs what a fleet runs, in virtual time: each worker has a queue around a bucket, and all
// buckets are one in a store. Each of a worker's callers makes one call after the other. Look at
// what bounds the calls. If that is a limit, more workers do not help; if it is the callers, they do.
//
// 50000/h spaces calls evenly. With 50000/h:window as many go at once as there is room for, as an
// API allows that counts the calls of an hour: try both. With -svg FILE it draws a picture.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

// shows is what the program shows, in a line.
const shows = "How long calls take under limits, in virtual time."

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program, and returns its exit status: 0; 1 if there is no result; 2 if it could not
// begin.
func run(args []string, out, stderr io.Writer) int {
	p, svg, err := arguments(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "plan:", err)
		return 2
	}
	r, err := p.try()
	if err == nil && svg != "" {
		err = os.WriteFile(svg, []byte(r.draw()), 0o644)
	}
	if err != nil {
		fmt.Fprintln(stderr, "plan:", err)
		return 1
	}
	r.print(out)
	return 0
}

// arguments returns the plan, and the file for the picture; "" for none.
func arguments(args []string, stderr io.Writer) (p plan, svg string, err error) {
	flags := flag.NewFlagSet("plan", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "%s\n\n\tgo run ./examples/plan [-limit LIMITS] [-calls N]\n\n", shows)
		flags.PrintDefaults()
	}
	limits := flags.String("limit", "100/s,50000/h", "the `LIMITS` of the API: 10/s, 5000/h or\n100/10s, with commas; 5000/h:window\nlets as many go at once")
	flags.IntVar(&p.calls, "calls", 20_000, "make `N` calls in all")
	flags.IntVar(&p.workers, "workers", 10, "`N` processes share the limits")
	flags.IntVar(&p.callers, "callers", 8, "`N` callers in each worker")
	flags.DurationVar(&p.latency, "latency", 150*time.Millisecond, "the `TIME` that each call takes")
	flags.StringVar(&svg, "svg", "", "draw this `FILE`, too")
	if err := flags.Parse(args); err != nil {
		return plan{}, "", err
	}
	if flags.NArg() > 0 {
		return plan{}, "", fmt.Errorf("%q is one argument too many", flags.Arg(0))
	}
	if p.limits, err = parseLimits(*limits); err != nil {
		return plan{}, "", err
	}
	return p, svg, p.check()
}
