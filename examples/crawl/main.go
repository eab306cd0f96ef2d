// Command crawl fetches pages of 200 hosts: one per second from each, and 20 in flight in all.
//
//	go run ./examples/crawl
//
// Two limiters are in a row. The outer one is a queue for 20 calls in flight, the same for all
// hosts. Each host has a queue of its own inside. In this order a call leaves when its host's queue
// admits it. The other way round it would be admitted by the host's queue, and then wait for a
// slot: the hosts would refuse 248 of these 1000 calls.
//
// A call has a slot while it waits for its host. So each host has one worker, which fetches its
// pages in sequence, and the hosts alternate: most of them have waited long enough when their call
// gets a slot. If a host has asked for a long pause, its worker waits without a slot. The program
// gives up a host that continues to refuse.
//
// The hosts are on this machine. They refuse a second call within a second, and the 21st call in
// flight. Look at the last line: the hosts admit every call, and 200 pages come per second.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

const (
	hosts    = 200
	pages    = 5 // of each
	inFlight = 20

	patience = 5 // refusals by one host, until the program gives it up
)

const shows = "200 hosts are crawled, at 1 page/s each and 20 in flight."

var example = cli.Example{Name: "crawl", Usage: shows + "\n\n\tgo run ./examples/crawl", New: cli.NoFlags(func(ctx context.Context, out io.Writer) error { return run(ctx, newHosts(), out) })}

func main() { example.Main() }

// newClient returns the crawler's client.
func newClient(base http.RoundTripper) (*http.Client, error) {
	perHost := &outbound.Keyed[string]{New: func(host string) (outbound.Limiter, error) {
		bucket, err := outbound.NewBucket(host, outbound.PerSecond(1))
		return queue.New(bucket, queue.Config{MaxWait: time.Second}), err
	}}
	inner := &transport.Transport{Base: base, For: transport.ByHost(perHost.For)}

	places, err := outbound.NewBucket("crawl", outbound.InFlight(inFlight))
	if err != nil {
		return nil, err
	}
	outer := &transport.Transport{Base: inner, Limiter: queue.New(places, queue.Config{}),
		Judge: transport.JudgeNever} // what a host answers steers its own limiter, and stops no other host
	return &http.Client{Transport: outer}, nil
}

// newHosts returns the hosts of the demonstration.
func newHosts() *outboundtest.API {
	host := func(req *http.Request) string { return req.Host }
	return &outboundtest.API{Latency: 20 * time.Millisecond, Jitter: 100 * time.Millisecond, Rules: []outboundtest.Rule{
		outboundtest.SlidingLog(1, time.Second).By(host),
		outboundtest.InFlight(inFlight),
	}}
}

// run crawls all hosts, with a worker for each.
func run(ctx context.Context, web http.RoundTripper, out io.Writer) error {
	client, err := newClient(web)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, shows)
	begin := time.Now()
	var fetched, refused atomic.Int32
	err = calls.Together(hosts, func(i int) error {
		refusals := 0
		for page := 0; page < pages; page++ {
			resp, err := calls.Get(ctx, client, fmt.Sprintf("https://host%d.example/%d", i, page))
			full, wait := errors.AsType[*outbound.ThrottledError](err)
			switch {
			case wait && calls.Sleep(ctx, full.RetryAfter):
				page-- // the same page again
			case err != nil:
				return err
			case resp.StatusCode == http.StatusTooManyRequests:
				refused.Add(1)
				if refusals++; refusals == patience {
					return fmt.Errorf("host%d.example has refused %d calls, and is given up", i, refusals)
				}
				page--
			default:
				fetched.Add(1)
			}
		}
		return nil
	})
	took := time.Since(begin).Seconds()
	fmt.Fprintf(out, "%d pages in %.1f s, %.0f per second; %d were refused.\n", fetched.Load(), took, float64(fetched.Load())/took, refused.Load())
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}
