// Command retry makes calls to an API that has bad days, and sees all of them through.
//
//	go run ./examples/retry                                        # 20 s: an API that behaves as Stripe does
//	go run ./examples/retry -url http://localhost:8080/ -rate 5    # any server of yours, by GET, 5 calls per second
//
// The API allows 10 calls in any second, and its 429 does not say how long to wait. It fails
// now and then, and once it is closed for two seconds. Two clients make the same calls at the
// same time, each to an API of its own. The first is a plain http.Client: it loses the calls
// that are refused or fail. The second tries again, and each attempt waits in the queue for
// its turn.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
	"github.com/dripfeed/dripfeed/transport/retry"
)

// shows is what the program shows, in a line.
const shows = "An API with bad days is called with retries and without."

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is main without a process: from the arguments to the exit status, which is 0, 1 if the
// API answered not one call, or 2 if the arguments are wrong.
func run(ctx context.Context, args []string, out, stderr io.Writer) int {
	flags := flag.NewFlagSet("retry", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "%s\n\n\tgo run ./examples/retry [flags]\n\n", shows)
		flags.PrintDefaults()
	}
	address := flags.String("url", "", "call this `URL` instead, by GET")
	rate := flags.Float64("rate", 10, "`N`: calls per second that the API allows")
	calls := flags.Int("calls", 150, "`N`: calls to make")
	workers := flags.Int("workers", 20, "`N`: calls at the same time")
	switch err := flags.Parse(args); {
	case err == flag.ErrHelp:
		return 0
	case err != nil:
		return 2
	}
	if err := check(*address, *rate, *calls, *workers, flags.Args()); err != nil {
		fmt.Fprintln(stderr, "retry:", err)
		return 2
	}

	jobs := []*job{{
		name: "queue and retry", method: http.MethodGet, url: *address,
		client: paced(nil, *rate, nil),
	}}
	if *address == "" {
		jobs = local(*rate)
	}
	for _, j := range jobs {
		j.calls, j.workers = *calls, *workers
	}
	if err := together(ctx, jobs, out); err != nil {
		fmt.Fprintln(stderr, "retry:", err)
		return 1
	}
	return 0
}

// check says what is wrong with the arguments, without the URL, which may have a password in
// it.
func check(address string, rate float64, calls, workers int, rest []string) error {
	u, err := url.Parse(address)
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q is one argument too many", rest[0])
	case address != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == ""):
		return fmt.Errorf("-url needs a URL such as http://localhost:8080/")
	case !(rate > 0 && rate <= 1e6):
		return fmt.Errorf("-rate needs a number above 0, up to a million")
	case calls < 1 || workers < 1:
		return fmt.Errorf("-calls and -workers need a number above 0")
	}
	return nil
}

// paced is the client to copy: a bucket for the API's limit, a queue in which calls and their
// later attempts wait, and retries above.
func paced(base http.RoundTripper, rate float64, p *profile.Profile) *http.Client {
	bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(rate)))
	t := &transport.Transport{
		Base:    base, // nil: http.DefaultTransport
		Limiter: queue.New(bucket, queue.Config{MaxWait: time.Minute}),
		Profile: p, // how the API says no; nil: as most do
	}
	return retry.NewClient(t).StandardClient()
}

// local lets both clients call an API of their own, without a network.
func local(rate float64) []*job {
	apis := [2]*moody{newAPI(math.Ceil(rate)), newAPI(math.Ceil(rate))}
	const order = "https://api.example.com/v1/charges"
	return []*job{
		{name: "plain client", method: http.MethodPost, url: order, client: &http.Client{Transport: apis[0]}, api: apis[0]},
		{name: "queue and retry", method: http.MethodPost, url: order, client: paced(apis[1], rate, profile.Stripe), api: apis[1]},
	}
}
