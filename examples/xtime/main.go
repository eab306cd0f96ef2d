// Command xtime paces calls of one API by golang.org/x/time/rate, and by a bucket:
//
//	go run ./examples/xtime
//
// Both admit one call every 50 ms. After a second the API asks all callers to stop for two seconds,
// by Retry-After. Look at what the API refuses. A program with rate.Limiter alone continues to
// call. The same limiter in a transport, by outbound/xrate, continues too: x/time cannot pause. In
// a transport, one line replaces it by a bucket. The bucket learns of the pause from the first
// refusal, and all calls wait until the pause ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/xrate"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

const (
	shows     = "An API asks for a pause, and a bucket keeps it."
	perSecond = 20
	callers   = 4
	requests  = 60
)

var example = cli.Example{Name: "xtime", Usage: shows + "\n\n\tgo run ./examples/xtime", New: cli.NoFlags(run)}

func main() { example.Main() }

// waiting is what a program has that uses x/time: it waits before each call.
type waiting struct {
	*rate.Limiter
	base http.RoundTripper
}

func (w waiting) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := w.Wait(req.Context()); err != nil {
		return nil, err
	}
	return w.base.RoundTrip(req)
}

// clients are the ways to pace the calls of an API.
var clients = []struct {
	name string
	of   func(api http.RoundTripper) http.RoundTripper
}{
	{"rate.Limiter", func(api http.RoundTripper) http.RoundTripper {
		return waiting{rate.NewLimiter(perSecond, 1), api}
	}},
	{"xrate.Limiter", func(api http.RoundTripper) http.RoundTripper {
		limiter := &xrate.Limiter{Rate: rate.NewLimiter(perSecond, 1), Key: "api"}
		return &transport.Transport{Base: api, Limiter: limiter}
	}},
	{"bucket, queue", func(api http.RoundTripper) http.RoundTripper {
		bucket := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 1, LeakRate: perSecond}))
		return &transport.Transport{Base: api, Limiter: queue.New(bucket, queue.Config{})}
	}},
}

// newAPI returns an API that is closed from the first second of its life to the third.
func newAPI() *outboundtest.API {
	began := time.Now()
	return &outboundtest.API{Latency: 20 * time.Millisecond, Next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if at := time.Since(began); at > time.Second && at < 3*time.Second {
			w.Header().Set("Retry-After", strconv.Itoa(int((4*time.Second-1-at)/time.Second)))
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})}
}

// run makes the calls in all ways at the same time, each with an API of its own.
func run(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "%s\n%d callers make %d calls, one every %v.\n\n%-14s %8s %7s %5s\n", shows, callers, requests, time.Second/perSecond, "", "answered", "refused", "sec")
	lines := make([]string, len(clients))
	err := calls.Together(len(clients), func(i int) error {
		start := time.Now()
		answered, refused, err := call(ctx, &http.Client{Transport: clients[i].of(newAPI())})
		lines[i] = fmt.Sprintf("%-14s %8d %7d %5.1f", clients[i].name, answered, refused, time.Since(start).Seconds())
		return err
	})
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	return err
}

// call makes the calls.
func call(ctx context.Context, client *http.Client) (answered, refused int32, err error) {
	var made, good, bad atomic.Int32
	err = calls.Together(callers, func(int) error {
		for made.Add(1) <= requests {
			resp, err := calls.Get(ctx, client, "http://api.example.com/")
			for full := new(outbound.ThrottledError); errors.As(err, &full) && calls.Sleep(ctx, full.RetryAfter); {
				resp, err = calls.Get(ctx, client, "http://api.example.com/") // xrate refuses a call that is too early
			}
			switch {
			case err != nil:
				return err
			case resp.StatusCode == http.StatusTooManyRequests:
				bad.Add(1)
			default:
				good.Add(1)
			}
		}
		return nil
	})
	return good.Load(), bad.Load(), err
}
