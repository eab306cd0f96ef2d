package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

const (
	plainShows  = "the API refuses what is too much."
	bucketShows = "what has no room fails here, and is not sent."
	queueShows  = "each call waits until the limit allows it."
)

// demo calls an API in several ways.
type demo struct {
	intro string
	rate  float64        // calls that the API allows in any second
	limit outbound.Limit // the limit that the ways keep to
	ways  []*way
	queue *way // one of them
	// sideBySide is set if each way has an API of its own; else one runs after the other.
	sideBySide bool
	close      func()
}

// local returns the three ways to call a strict API that allows rate calls in any second.
// Each way has its own API, on a port of its own, so that none uses up what another would
// get.
func local(rate float64) (*demo, error) {
	var urls [3]string
	var closers []io.Closer
	base := newBase()
	closeAll := func() {
		base.CloseIdleConnections()
		for _, c := range closers {
			c.Close() // every call has its answer, so nothing is lost
		}
	}
	for i := range urls {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			closeAll()
			return nil, err
		}
		server := &http.Server{Handler: strictAPI(rate), ReadHeaderTimeout: time.Minute}
		closers = append(closers, server)
		urls[i] = "http://" + listener.Addr().String() + "/"
		go server.Serve(listener) // until Close; its error only says so
	}
	d, err := threeWays(rate, urls, [3]http.RoundTripper{base, base, base})
	if err != nil {
		closeAll()
		return nil, err
	}
	d.close = closeAll
	return d, nil
}

func strictAPI(rate float64) *outboundtest.API {
	return &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(rate, time.Second)}}
}

// threeWays returns the three ways to call three equal APIs.
func threeWays(rate float64, urls [3]string, base [3]http.RoundTripper) (*demo, error) {
	limit := outbound.PerSecond(rate)
	alone, err := outbound.NewBucket("alone", limit)
	if err != nil {
		return nil, err
	}
	queued, err := outbound.NewBucket("queued", limit)
	if err != nil {
		return nil, err
	}
	d := &demo{
		intro: fmt.Sprintf("%s\nIt allows %v calls in any second; %d come, %v per second.", shows, rate, calls, 2*rate),
		rate:  rate,
		limit: limit,
		ways: []*way{
			newWay("plain client", plainShows, urls[0], &http.Client{Transport: base[0]}),
			newWay("bucket", bucketShows, urls[1], paced(base[1], alone)),
			newWay("queue", queueShows, urls[2], paced(base[2], queue.New(queued, queue.Config{}))),
		},
		sideBySide: true,
		close:      func() {},
	}
	d.queue = d.ways[2]
	return d, nil
}

// remote returns two ways to call somebody's server. They share one bucket, so that the
// server sees no more than rate calls in any second, whichever of them runs.
func remote(url string, rate float64) (*demo, error) {
	limit := outbound.PerSecond(rate)
	bucket, err := outbound.NewBucket("api", limit)
	if err != nil {
		return nil, err
	}
	base := newBase()
	d := &demo{
		intro: fmt.Sprintf("A server is called by a queue, and then by a bucket alone.\nIt allows %v calls in any second; %d come, %v per second.", rate, calls, 2*rate),
		rate:  rate,
		limit: limit,
		ways: []*way{
			newWay("queue", queueShows, url, paced(base, queue.New(bucket, queue.Config{}))),
			newWay("bucket", bucketShows, url, paced(base, bucket)),
		},
		close: base.CloseIdleConnections,
	}
	d.queue = d.ways[0]
	return d, nil
}

// paced returns a client whose calls a limiter admits.
func paced(base http.RoundTripper, l outbound.Limiter) *http.Client {
	return &http.Client{Transport: &transport.Transport{Base: base, Limiter: l}}
}

func newBase() *http.Transport {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = calls
	base.ResponseHeaderTimeout = 30 * time.Second
	return base
}

// run makes the calls, shows them, and prints the table. Its error says why it has not made
// them.
func (d *demo) run(ctx context.Context, s screen) error {
	s.printf("%s\n\n%s\n\n", d.intro, legend)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.call(ctx)
	}()
	s.watch(d.ways, done)
	s.table(d)
	if err := ctx.Err(); err != nil {
		return errors.New("interrupted")
	}
	switch t := d.queue.tally(); {
	case t.failed > 0 && t.answered == 0:
		return fmt.Errorf("%d calls of the queue have failed, the first with: %w", t.failed, t.failure)
	case t.refusedByAPI > 0:
		s.printf("\nThe API has refused %d calls of the queue: they came late, as\non a busy machine, or it allows less.\n", t.refusedByAPI)
	}
	return nil
}

// call makes the calls, twice as fast as the API allows.
func (d *demo) call(ctx context.Context) {
	every := time.Duration(float64(time.Second) / (2 * d.rate))
	var all sync.WaitGroup
	for _, w := range d.ways {
		if d.sideBySide {
			all.Go(func() { w.run(ctx, every) })
		} else {
			w.run(ctx, every)
		}
	}
	all.Wait()
}

// ideal is the time of a perfect client, which leaves as early as the limit allows: the first
// calls at once, the others as fast as the limit leaks.
func (d *demo) ideal() time.Duration {
	return time.Duration((calls - d.limit.Capacity) / d.limit.LeakRate * float64(time.Second))
}
