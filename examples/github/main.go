// Command github calls GitHub's API from four workers that share one quota: three work
// on issues, and one searches, which has a quota of its own.
//
//	go run ./examples/github [-real]
//
// The program configures what GitHub publishes. Calls in an hour and searches in a minute are
// windows: as many go at once as there is room for, and all of the quota is used. With
// outbound.PerHour(5_000) one call would go every 0.72 s, and 300 calls would take 215 s; here
// they take 21 s. Points in a minute, of which a GET takes 1 and any other call 5, are spaced
// evenly: no answer tells of them. Every answer tells how many calls are left, and so of those
// that other programs of the same user make. When nothing is left, the workers wait for the
// reset.
//
// The API is one on this machine that behaves as GitHub does, with an hour of six seconds and
// a minute of one, so that there is something to see. Meanwhile another program of the same
// user breaks the limit on points. Look at what happens then: GitHub refuses some calls, with
// a status 403 that only its text tells from a lack of permission. That makes all workers
// wait, and they go on a little slower than before. Its calls count in the hour as well, so
// that nothing is left before the workers have made 150. And look at the searches: when none
// is left, only they wait.
//
// With -real it asks api.github.com ten times for /rate_limit, which costs nothing, with the
// token in GITHUB_TOKEN.
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
	"strings"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// The units of a cost.
const (
	calls = iota
	points
)

// cost returns what a request costs by GitHub's documentation.
func cost(req *http.Request) outbound.Cost {
	if req.Method == http.MethodGet {
		return outbound.Cost{calls: 1, points: 1}
	}
	return outbound.Cost{calls: 1, points: 5}
}

// quota is what GitHub allows a user, less what others are to have of it.
type quota struct {
	calls    outbound.Limit // but for searches
	searches outbound.Limit
	points   []outbound.Limit // of each resource, such as core and search
}

// pointsOf returns the limits on points in a minute. A call takes at least a point. The limit
// on calls is there so that the bucket can hold them when an answer says that none is left.
func pointsOf(n float64, minute time.Duration) []outbound.Limit {
	return []outbound.Limit{
		outbound.Per(n, minute).Of(calls, "calls"),
		outbound.Per(n, minute).Burst(5).Of(points, "points"),
	}
}

// isSearch reports whether a call is of the searches.
func isSearch(req *http.Request) bool { return strings.HasPrefix(req.URL.Path, "/search/") }

// resources finds the limiters of GitHub's resources. The answers to a path say which
// resource it belongs to. All workers share the store.
func resources(store store.Store, q quota, listen func(context.Context, outbound.Event)) *transport.Discovered {
	return &transport.Discovered{
		Route: func(req *http.Request) string {
			if isSearch(req) {
				return req.URL.Path // the search of code has fewer calls than the others
			}
			first, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
			return first
		},
		Name: transport.HeaderName("X-RateLimit-Resource"),
		Limiters: &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			limits := []outbound.Limit{q.calls}
			if strings.HasSuffix(key, "=search") || strings.Contains(key, " /search/") {
				limits[0] = q.searches
			}
			bucket, err := outbound.NewSharedBucket(store, key, append(limits, q.points...)...)
			if err != nil {
				return nil, err
			}
			return outbound.Observe(queue.New(bucket, queue.Config{}), key, listen), nil
		}},
	}
}

// newClient returns a worker's client.
func newClient(base http.RoundTripper, d *transport.Discovered) *http.Client {
	return &http.Client{Transport: &transport.Transport{
		Base: base, For: d.For, OnResponse: d.Learn, Cost: cost, Profile: profile.GitHub,
	}}
}

// task is what the workers do together.
type task struct {
	base    http.RoundTripper
	quota   quota
	request func(ctx context.Context, search bool, n int) (*http.Request, error)

	mu              sync.Mutex // protects the fields below
	out             io.Writer
	calls, searches int // that are still to make
	made, refused   int
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
		fmt.Printf("The API is on this machine, and its hour has 6 s.\n\n")
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
	only := func(name string, ok func(*http.Request) bool) func(*http.Request) string {
		return func(req *http.Request) string {
			if ok(req) {
				return name
			}
			return ""
		}
	}
	api := outboundtest.GitHub(
		outboundtest.FirstCallWindow(150, 6*time.Second).Of("core", nil).By(only("core", func(req *http.Request) bool { return !isSearch(req) })),
		outboundtest.FirstCallWindow(20, 6*time.Second).Of("search", nil).By(only("search", isSearch)),
		outboundtest.SlidingLog(200, time.Second).Of("points", func(req *http.Request) float64 { return cost(req)[points] }))
	api.Latency = 20 * time.Millisecond
	return api
}

// demo leaves some points of a minute to the searches.
func demo(api http.RoundTripper, out io.Writer) *task {
	return &task{base: api, out: out, calls: 220, searches: 30,
		quota: quota{outbound.Window(150, 6*time.Second), outbound.Window(20, 6*time.Second), pointsOf(180, time.Second)},
		request: func(ctx context.Context, search bool, n int) (*http.Request, error) {
			method, path := http.MethodGet, "repos/o/r/issues"
			switch {
			case search:
				path = "search/issues"
			case n%10 == 0:
				method = http.MethodPost
			}
			return http.NewRequestWithContext(ctx, method, "https://api.github.com/"+path, nil)
		}}
}

// real leaves 40 of the 900 points of a minute to the searches, of which GitHub allows no
// more.
func real(token string, out io.Writer) *task {
	return &task{base: http.DefaultTransport, out: out, calls: 10,
		quota: quota{outbound.Window(5_000, time.Hour), outbound.Window(30, time.Minute), pointsOf(860, time.Minute)},
		request: func(ctx context.Context, _ bool, _ int) (*http.Request, error) {
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
	case <-time.After(700 * time.Millisecond):
	case <-ctx.Done():
		return
	}
	var all sync.WaitGroup
	for range 50 { // 250 points in a quarter of a second
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

// run lets the workers make all the calls. In real life each worker is a process of its own,
// and the store is in Redis.
func (t *task) run(ctx context.Context) error {
	begin := time.Now()
	store := store.NewMemory()
	var all sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		worker := i + 1
		client := newClient(t.base, resources(store, t.quota, func(_ context.Context, e outbound.Event) {
			resource := e.Name[strings.LastIndexAny(e.Name, "= ")+1:]
			switch at := time.Since(begin).Seconds(); {
			case e.Kind == outbound.EventHeld && e.Rejected:
				t.printf("%4.1f s  worker %d hears that %s has to wait %v\n", at, worker, resource, e.Hold.Round(time.Second/10))
			case e.Wait > 2*time.Second:
				t.printf("%4.1f s  worker %d has waited %v for %s\n", at, worker, e.Wait.Round(time.Second/10), resource)
			}
		}))
		all.Go(func() { errs[i] = t.work(ctx, client, worker == len(errs)) })
	}
	all.Wait()
	t.printf("%d calls in %.1f s, %d of them refused\n", t.made, time.Since(begin).Seconds(), t.refused)
	return errors.Join(errs...)
}

// take takes a call to make, and returns false if there is none left.
func (t *task) take(search bool) (n int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := &t.calls
	if search {
		left = &t.searches
	}
	if *left == 0 {
		return 0, false
	}
	*left--
	t.made++
	return *left, true
}

// work is one worker: it makes one call after the other.
func (t *task) work(ctx context.Context, client *http.Client, search bool) error {
	for {
		n, ok := t.take(search)
		if !ok {
			return nil
		}
		req, err := t.request(ctx, search, n)
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
