// Command github calls GitHub's API from four workers that share one quota: 5000 calls
// an hour, and 900 points a minute, of which a GET takes 1 and any other call 5.
//
//	go run ./examples/github [-real]
//
// The API is one on this machine that behaves as GitHub does, with an hour of three
// seconds and a minute of one, so that there is something to see. Halfway another
// program of the same user breaks the secondary limit. Look at what happens then: the
// first worker that is refused, with a status 403 that only its text tells from a lack
// of permission, makes all of them wait, and they go on a little slower than before.
//
// With -real it asks api.github.com ten times for /rate_limit, which costs nothing, with
// the token in GITHUB_TOKEN.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// The units of a cost.
const (
	calls = iota
	points
)

// cost is what GitHub's documentation says of a request.
func cost(req *http.Request) outbound.Cost {
	if req.Method == http.MethodGet {
		return outbound.Cost{calls: 1, points: 1}
	}
	return outbound.Cost{calls: 1, points: 5}
}

// task is what the workers do together.
type task struct {
	base    http.RoundTripper
	limits  []outbound.Limit
	request func(ctx context.Context, n int) (*http.Request, error)
	calls   int // in all

	mu      sync.Mutex // protects the fields below
	out     io.Writer
	next    int
	refused int
}

// shows is what the program shows, in a line.
const shows = "Four workers share a user's quota at GitHub."

func main() {
	isReal := flag.Bool("real", false, "call api.github.com, with GITHUB_TOKEN")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "%s\n\n\tgo run ./examples/github [-real]\n\n", shows)
		flag.PrintDefaults()
	}
	flag.Parse()
	token := os.Getenv("GITHUB_TOKEN")
	switch {
	case flag.NArg() > 0:
		flag.Usage()
		os.Exit(2)
	case *isReal && token == "":
		fmt.Fprintln(os.Stderr, "github: -real needs GITHUB_TOKEN")
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	fmt.Println(shows)
	var t *task
	if *isReal {
		t = real(token, os.Stdout)
	} else {
		fmt.Printf("The API is on this machine, and its hour has 3 s.\n\n")
		t = demo(newAPI(), os.Stdout)
		go t.disturb(ctx)
	}
	if err := t.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "github:", err)
		stop()
		os.Exit(1)
	}
}

// newAPI returns the API of the demonstration.
func newAPI() *outboundtest.API {
	api := outboundtest.GitHub(
		outboundtest.FirstCallWindow(300, 3*time.Second).Of("core", nil),
		outboundtest.SlidingLog(200, time.Second).Of("points", func(req *http.Request) float64 { return cost(req)[points] }))
	api.Latency = 20 * time.Millisecond
	return api
}

func demo(api http.RoundTripper, out io.Writer) *task {
	return &task{base: api, out: out, calls: 400,
		limits: []outbound.Limit{
			outbound.Per(300, 3*time.Second).Of(calls, "calls per hour"),
			outbound.PerSecond(200).Burst(5).Of(points, "points per minute"),
		},
		request: func(ctx context.Context, n int) (*http.Request, error) {
			method := http.MethodGet
			if n%10 == 0 {
				method = http.MethodPost
			}
			return http.NewRequestWithContext(ctx, method, "https://api.github.com/repos/o/r/issues", nil)
		}}
}

func real(token string, out io.Writer) *task {
	return &task{base: http.DefaultTransport, out: out, calls: 10,
		limits: []outbound.Limit{
			outbound.PerHour(5000).Of(calls, "calls per hour"),
			outbound.PerMinute(900).Burst(5).Of(points, "points per minute"),
		},
		request: func(ctx context.Context, _ int) (*http.Request, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.github.com/rate_limit", nil)
			if err == nil {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			return req, err
		}}
}

// disturb is the other program.
func (t *task) disturb(ctx context.Context) {
	select {
	case <-time.After(1500 * time.Millisecond):
	case <-ctx.Done():
		return
	}
	var all sync.WaitGroup
	for range 100 { // 500 points in half a second
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.github.com/repos/o/r/issues", nil)
		if err != nil {
			return
		}
		all.Go(func() {
			if resp, err := t.base.RoundTrip(req); err == nil {
				_ = resp.Body.Close()
			}
		})
		time.Sleep(5 * time.Millisecond)
	}
	all.Wait()
}

// run has the workers make all the calls. In real life each is a process of its own,
// and the store is in Redis.
func (t *task) run(ctx context.Context) error {
	begin := time.Now()
	store := outbound.NewMemory()
	var all sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		bucket, err := outbound.NewSharedBucket(store, "github", t.limits...)
		if err != nil {
			return err
		}
		limiter := outbound.Observe(queue.New(bucket, queue.Config{}), "github", func(_ context.Context, e outbound.Event) {
			if e.Kind == outbound.EventHeld {
				t.printf("%4.1f s  worker %d hears: wait %v (%v)\n", time.Since(begin).Seconds(), i+1, e.Hold.Round(time.Second/10), e.Reason)
			}
		})
		client := &http.Client{Transport: &transport.Transport{Base: t.base, Limiter: limiter, Cost: cost, Profile: profile.GitHub}}
		all.Go(func() { errs[i] = t.work(ctx, client) })
	}
	all.Wait()
	t.printf("%d calls in %.1f s, %d of them refused\n", t.next, time.Since(begin).Seconds(), t.refused)
	return errors.Join(errs...)
}

// work is one worker: it makes one call after the other.
func (t *task) work(ctx context.Context, client *http.Client) error {
	for {
		t.mu.Lock()
		n := t.next
		if n == t.calls {
			t.mu.Unlock()
			return nil
		}
		t.next++
		t.mu.Unlock()
		req, err := t.request(ctx, n)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		switch {
		case resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusTooManyRequests:
			t.mu.Lock()
			t.refused++
			t.mu.Unlock()
		case resp.StatusCode >= 400:
			return fmt.Errorf("the API has answered %s", resp.Status)
		}
	}
}

func (t *task) printf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, format, args...)
}
