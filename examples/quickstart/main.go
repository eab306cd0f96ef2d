// Command quickstart calls a strict API 40 times in three ways, and shows each call's result:
//
//	go run ./examples/quickstart
//
// The program serves the API on a port of this machine. It allows 10 calls in any second, and the
// calls come at 20 per second. Look at the rows of the table. The API refuses calls of a plain
// client. A bucket refuses in the process what the API would refuse. A queue makes each call wait,
// so that all are answered as soon as the API allows.
//
// The picture of the same is quickstart.svg. A test draws it in virtual time, so that it is the
// same on every machine.
//
// The program can call any other server in two of the ways, too, first by a bucket and then by
// a queue, which take turns under one limit:
//
//	go run ./examples/quickstart -api http://localhost:8080/ -rate 5
//
// It leaves the plain client out then, so that it calls the server at most at -rate.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/examples/internal/screen"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

const (
	shows  = "A strict API is called in three ways, side by side."
	rate   = 10 // calls that the API of this example allows in any second
	legend = "+ answered  X refused by the API  - refused by us  . waiting"
)

var example = cli.Example{Name: "quickstart", Usage: shows + "\n\n\tgo run ./examples/quickstart [-api URL -rate N]", New: program}

func main() { example.Main() }

func program(flags *flag.FlagSet) cli.Run {
	api := flags.String("api", "", "call this `URL` in two of the ways; needs -rate")
	perSecond := 0.
	cli.Number(flags, &perSecond, "rate", 0.01, 1000, "calls that it allows\nin a second")
	return func(ctx context.Context, out io.Writer) error {
		if (*api == "") != (perSecond == 0) {
			return cli.Wrong("-api needs -rate, and -rate needs -api")
		}
		if *api == "" {
			return local(ctx, rate, out)
		}
		if u, err := url.Parse(*api); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return cli.Wrong("-api needs a URL such as http://localhost:8080/") // not the text, which may hold a password
		}
		return remote(*api, perSecond).run(ctx, out)
	}
}

// demo calls an API in several ways. The last one is the queue.
type demo struct {
	intro      string
	rate       float64        // calls that the API allows in any second
	limit      outbound.Limit // the limit that the ways keep to
	ways       []*way
	sideBySide bool // each way has an API of its own; else one runs after the other
}

// local serves three strict APIs on ports of this machine, one for each way, so that none uses up
// what another would get.
func local(ctx context.Context, rate float64, out io.Writer) error {
	var urls [3]string
	for i := range urls {
		server := httptest.NewServer(strictAPI(rate))
		defer server.Close()
		urls[i] = server.URL
	}
	return threeWays(rate, urls, [3]http.RoundTripper{}).run(ctx, out)
}

func strictAPI(rate float64) *outboundtest.API {
	return &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(rate, time.Second)}}
}

const queueShows, bucketShows = "each call waits until the limit allows it.", "calls over the limit fail here, unsent."

// threeWays returns the three ways to call three equal APIs.
func threeWays(rate float64, urls [3]string, base [3]http.RoundTripper) *demo {
	limit := outbound.PerSecond(rate)
	alone, queued := outbound.Must(outbound.NewBucket("alone", limit)), outbound.Must(outbound.NewBucket("queued", limit))
	intro := fmt.Sprintf("%s\nIt allows %v calls in any second; %d come, %v per second.", shows, rate, requests, 2*rate)
	return &demo{intro: intro, rate: rate, limit: limit, sideBySide: true, ways: []*way{
		{name: "plain client", shows: "the API refuses what is too much.", url: urls[0], client: &http.Client{Transport: base[0]}},
		{name: "bucket", shows: bucketShows, url: urls[1], client: paced(base[1], alone)},
		{name: "queue", shows: queueShows, url: urls[2], client: paced(base[2], queue.New(queued, queue.Config{}))},
	}}
}

// remote returns two ways to call the server of -api. They share one bucket, so that the server
// sees no more than rate calls in any second, whichever of them runs.
func remote(url string, rate float64) *demo {
	limit := outbound.PerSecond(rate)
	bucket := outbound.Must(outbound.NewBucket("api", limit))
	intro := fmt.Sprintf("A server is called by a bucket alone, and then by a queue.\nIt allows %v calls in any second; %d come, %v per second.", rate, requests, 2*rate)
	return &demo{intro: intro, rate: rate, limit: limit, ways: []*way{
		{name: "bucket", shows: bucketShows, url: url, client: paced(nil, bucket)},
		{name: "queue", shows: queueShows, url: url, client: paced(nil, queue.New(bucket, queue.Config{}))},
	}}
}

func (d *demo) queue() *way { return d.ways[len(d.ways)-1] }

// paced returns a client whose calls a limiter admits. A nil base is http.DefaultTransport.
func paced(base http.RoundTripper, l outbound.Limiter) *http.Client {
	return &http.Client{Transport: &transport.Transport{Base: base, Limiter: l}}
}

// run makes the calls, shows them, and prints the table. Its error says why it has not made
// them.
func (d *demo) run(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "%s\n\n%s\n\n", d.intro, legend)
	done := make(chan struct{})
	go d.call(ctx, done)
	d.watch(out, done)
	d.table(out)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	q := d.queue()
	if n := q.count(failed); n > 0 && q.count(answered) == 0 {
		return fmt.Errorf("%d calls of the queue have failed, the first with: %w", n, q.failure)
	}
	if n := q.count(refusedByAPI); n > 0 {
		fmt.Fprintf(out, "\nThe API has refused %d calls of the queue: they came late, as\non a busy machine, or it allows less.\n", n)
	}
	return nil
}

// call makes the calls, twice as fast as the API allows.
func (d *demo) call(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	every := time.Duration(float64(time.Second) / (2 * d.rate))
	if d.sideBySide {
		_ = calls.Together(len(d.ways), func(i int) error { return d.ways[i].run(ctx, every) }) // a way never fails
		return
	}
	for _, w := range d.ways {
		_ = w.run(ctx, every)
	}
}

// watch shows the ways until done is closed: in a terminal one line for each, drawn again and
// again; else a line per second for each that has changed.
func (d *demo) watch(out io.Writer, done <-chan struct{}) {
	start, live, every := time.Now(), screen.Live(out), time.Second
	if live {
		every = 50 * time.Millisecond
	}
	tick, drawn, shown := time.Tick(every), screen.Screen{Out: out}, make([]string, len(d.ways))
	for last := false; !last; {
		select {
		case <-tick:
		case <-done:
			last = true
		}
		for i, w := range d.ways {
			line := fmt.Sprintf("%-12s %s", w.name, strings.TrimRight(w.line(), " "))
			if !live && line != shown[i] {
				fmt.Fprintf(out, "%2.0f s  %s\n", time.Since(start).Seconds(), line)
			}
			shown[i] = line
		}
		if live {
			drawn.Draw(shown...)
		}
	}
}

// table prints the results of the calls, and what they show. It has less than 60 columns, as all
// output does.
func (d *demo) table(out io.Writer) {
	fmt.Fprintf(out, "\n%-12s %6s %9s %12s %8s %6s\n", "", "calls", "answered", "refused by", "seconds", "quota")
	fmt.Fprintf(out, "%-12s %6s %9s %7s %4s %8s %6s\n", "", "", "", "API", "us", "", "used")
	for _, w := range d.ways {
		took, good := w.took().Seconds(), w.count(answered)
		// An even flow would use the whole quota.
		fmt.Fprintf(out, "%-12s %6d %9d %7d %4d %8.2f %4.0f %%\n",
			w.name, requests-w.count(unmade), good, w.count(refusedByAPI), w.count(refusedByUs), took, 100*float64(good)/(1+d.rate*took))
	}
	fmt.Fprintln(out)
	for _, w := range d.ways {
		fmt.Fprintf(out, "%-13s %s\n", w.name+":", w.shows)
		if n := w.count(failed); n > 0 {
			fmt.Fprintf(out, "%d calls failed, the first with: %v\n", n, w.failure)
		}
	}
	if d.queue().count(answered) == requests {
		took, ideal := d.queue().took().Seconds(), d.ideal().Seconds()
		fmt.Fprintf(out, "\nThe queue keeps to a burst of %v and %.3f per second.\nIdeal: (%d - %[1]v) / %.3[2]f = %.2[4]f s.\nIt took %.2[5]f s, %.3[6]f times that.\n",
			d.limit.Capacity, d.limit.LeakRate, requests, ideal, took, took/ideal)
	}
}

// ideal is the time of a perfect client: the first calls leave in one burst, and the rest as fast
// as the limit leaks.
func (d *demo) ideal() time.Duration {
	return time.Duration((requests - d.limit.Capacity) / d.limit.LeakRate * float64(time.Second))
}
