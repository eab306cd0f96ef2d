// Command quickstart calls a strict API 40 times in three ways, and shows what becomes of the
// calls:
//
//	go run ./examples/quickstart
//
// The program serves the API on a port of this machine. It allows 10 calls in any second, and
// the calls come at 20 per second. Look at the rows of the table. The API refuses calls of a
// plain client. A bucket refuses by itself and at once what the API would refuse. A queue
// lets every call wait for its turn, so that none is refused and all are answered as soon as
// the API allows.
//
// The file quickstart.svg is a picture of the same. The program draws it in virtual time, so
// that it is the same on every machine:
//
//	go run ./examples/quickstart -svg picture.svg
//
// The program can call any other server in two of the ways, too, first by a queue and then by
// a bucket, which take turns under one limit:
//
//	go run ./examples/quickstart -api http://localhost:8080/ -rate 5
//
// It leaves the plain client out there, so that it calls nobody's server faster than -rate.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
)

// shows is what the program shows, in a line.
const shows = "A strict API is called in three ways, side by side."

// rate is how many calls the API of this example allows in any second.
const rate = 10

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], screen{out: os.Stdout, live: isTerminal(os.Stdout)}, os.Stderr))
}

// run is the program, and returns its exit status: 0; 1 if it made no calls; 2 if it could
// not begin.
func run(ctx context.Context, args []string, s screen, stderr io.Writer) int {
	api, perSecond, svg, err := arguments(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil && svg != "" {
		if err := save(svg, screen{out: s.out}); err != nil {
			fmt.Fprintln(stderr, "quickstart:", err)
			return 1
		}
		return 0
	}
	var d *demo
	if err == nil {
		if api == "" {
			d, err = local(rate)
		} else {
			d, err = remote(api, perSecond)
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "quickstart:", err)
		return 2
	}
	defer d.close()
	if err := d.run(ctx, s); err != nil {
		fmt.Fprintln(stderr, "quickstart:", err)
		return 1
	}
	return 0
}

// arguments returns the server to call and how often in a second; "" for the API of this
// example. It also returns the file for the picture; "" for none.
func arguments(args []string, stderr io.Writer) (api string, perSecond float64, svg string, err error) {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "%s\n\n\tgo run ./examples/quickstart [-api URL -rate N] [-svg FILE]\n\n", shows)
		flags.PrintDefaults()
	}
	flags.StringVar(&api, "api", "", "call this `URL` in two of the ways; needs -rate")
	flags.Float64Var(&perSecond, "rate", 0, "`N`, 0.01 to 1000: calls that it allows in a second")
	flags.StringVar(&svg, "svg", "", "draw this `FILE`, in virtual time")
	if err := flags.Parse(args); err != nil {
		return "", 0, "", err
	}
	if flags.NArg() > 0 {
		return "", 0, "", fmt.Errorf("%q is one argument too many", flags.Arg(0))
	}
	if api == "" {
		if perSecond != 0 {
			return "", 0, "", errors.New("-rate needs -api")
		}
		return "", 0, svg, nil
	}
	if svg != "" {
		return "", 0, "", errors.New("-svg draws the API of this example, and goes without -api")
	}
	// The URL may carry a password or a token, so no error shows it.
	if u, err := url.Parse(api); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "", 0, "", errors.New("-api needs a URL such as http://localhost:8080/")
	}
	if !(perSecond >= 0.01 && perSecond <= 1000) { // not so for NaN
		return "", 0, "", fmt.Errorf("-rate needs a number from 0.01 to 1000, not %v", perSecond)
	}
	return api, perSecond, "", nil
}
