// Command github calls GitHub's API from four workers that share one quota: three work
// on issues, and one searches, which has a quota of its own.
//
//	go run ./examples/github [-real]
//
// The program configures what GitHub publishes. Calls in an hour and searches in a minute are
// windows: calls leave immediately while the window has capacity, and the whole quota is used. With
// outbound.PerHour(5_000) one call would leave every 0.72 s, and 300 calls would take 215 s; here
// they take 21 s. Points in a minute (1 for a GET, 5 for any other call) are spaced evenly, because
// no answer has them. Every answer has the number of remaining calls, which includes calls of other
// programs of the same user. When none remains, the workers wait for the reset.
//
// The API is one on this machine that behaves as GitHub does, with an hour of six seconds and a
// minute of one, so that there is something to see. Meanwhile another program of the same user
// breaks the limit on points. Look at what happens then: GitHub refuses some calls with a status
// 403, which only its text distinguishes from a missing permission. That makes all workers wait,
// and they go on a little slower than before. Its calls count in the hour as well, so that nothing
// is left before the workers have made 150. And look at the searches: when none is left, only they
// wait.
//
// With -real it asks api.github.com ten times for /rate_limit, which costs nothing, with the
// token in GITHUB_TOKEN.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	shared "github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

const shows = "Four workers share a user's quota at GitHub."

var example = cli.Example{Name: "github", Usage: shows + "\n\n\tgo run ./examples/github [-real]", New: program}

func main() { example.Main() }

func program(flags *flag.FlagSet) cli.Run {
	isReal := flags.Bool("real", false, "call api.github.com, with GITHUB_TOKEN")
	return func(ctx context.Context, out io.Writer) error {
		if token := os.Getenv("GITHUB_TOKEN"); *isReal && token == "" {
			return cli.Wrong("-real needs GITHUB_TOKEN")
		} else if *isReal {
			return real(token).run(ctx, out)
		}
		fmt.Fprintf(out, "%s\nThe API is on this machine, and its hour has 6 s.\n\n", shows)
		t := demo(newAPI())
		go t.disturb(ctx)
		return t.run(ctx, out)
	}
}

const issues = "https://api.github.com/repos/o/r/issues"

// The units of a cost.
const calls, points = 0, 1

// cost returns what a request costs by GitHub's documentation.
func cost(req *http.Request) outbound.Cost {
	if req.Method == http.MethodGet {
		return outbound.Cost{calls: 1, points: 1}
	}
	return outbound.Cost{calls: 1, points: 5}
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

// task is what the workers do together.
type task struct {
	base            http.RoundTripper
	ofCalls         outbound.Limit // except searches
	ofSearches      outbound.Limit
	ofPoints        []outbound.Limit // of each resource, such as core and search
	authorization   string
	url             string // of the calls
	calls, searches int32  // that are still to make
	made, refused   atomic.Int32
}

// client returns a worker's client. It finds a limiter for each of GitHub's resources: the answers
// to a path say which resource it belongs to. All workers share the store.
func (t *task) client(store store.Store, listen func(context.Context, outbound.Event)) *http.Client {
	d := &transport.Discovered{
		Route: func(req *http.Request) string {
			if isSearch(req) {
				return req.URL.Path // the search of code has a smaller quota than other searches
			}
			first, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
			return first
		},
		Name: transport.HeaderName("X-RateLimit-Resource"),
		Limiters: &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			limit := t.ofCalls
			if strings.HasSuffix(key, "=search") || strings.Contains(key, " /search/") {
				limit = t.ofSearches
			}
			bucket, err := outbound.NewSharedBucket(store, key, append(t.ofPoints, limit)...)
			if err != nil {
				return nil, err
			}
			return outbound.Observe(queue.New(bucket, queue.Config{}), key, listen), nil
		}},
	}
	return &http.Client{Transport: &transport.Transport{Base: t.base, For: d.For, OnResponse: d.Learn, Cost: cost, Profile: profile.GitHub}}
}

// newAPI returns the API of the demonstration.
func newAPI() *outboundtest.API {
	searches := func(req *http.Request) float64 {
		if isSearch(req) {
			return 1
		}
		return 0
	}
	api := outboundtest.GitHub(
		outboundtest.FirstCallWindow(150, 6*time.Second).Of("core", func(req *http.Request) float64 { return 1 - searches(req) }),
		outboundtest.FirstCallWindow(20, 6*time.Second).Of("search", searches),
		outboundtest.SlidingLog(200, time.Second).Of("points", func(req *http.Request) float64 { return cost(req)[points] }))
	api.Latency = 20 * time.Millisecond
	return api
}

// demo leaves some points of a minute to the searches.
func demo(api http.RoundTripper) *task {
	return &task{base: api, url: issues, calls: 220, searches: 30,
		ofCalls: outbound.Window(150, 6*time.Second), ofSearches: outbound.Window(20, 6*time.Second), ofPoints: pointsOf(180, time.Second)}
}

// real leaves 40 of the 900 points of a minute for searches: GitHub allows as many.
func real(token string) *task {
	return &task{base: http.DefaultTransport, url: "https://api.github.com/rate_limit", calls: 10, authorization: "Bearer " + token,
		ofCalls: outbound.Window(5_000, time.Hour), ofSearches: outbound.Window(30, time.Minute), ofPoints: pointsOf(860, time.Minute)}
}

// disturb is the other program: it takes 250 points in a quarter of a second.
func (t *task) disturb(ctx context.Context) {
	shared.Sleep(ctx, 700*time.Millisecond)
	for range 50 {
		go shared.Do(ctx, &http.Client{Transport: t.base}, http.MethodPost, issues, "")
		time.Sleep(5 * time.Millisecond)
	}
}

// run lets the workers make all the calls. In real life each worker is a process of its own,
// and the store is in Redis.
func (t *task) run(ctx context.Context, out io.Writer) error {
	log, store := shared.NewLog(out), store.NewMemory()
	err := shared.Together(4, func(i int) error {
		url, left := t.url, &t.calls
		if i == 3 {
			url, left = "https://api.github.com/search/issues", &t.searches
		}
		client := t.client(store, func(_ context.Context, e outbound.Event) {
			resource := e.Name[strings.LastIndexAny(e.Name, "= ")+1:]
			switch {
			case e.Kind == outbound.EventHeld && e.Rejected:
				log.Printf("worker %d hears that %s has to wait %v", i+1, resource, e.Hold.Round(time.Second/10))
			case e.Wait > 2*time.Second:
				log.Printf("worker %d has waited %v for %s", i+1, e.Wait.Round(time.Second/10), resource)
			}
		})
		for atomic.AddInt32(left, -1) >= 0 {
			t.made.Add(1)
			resp, err := shared.Do(ctx, client, http.MethodGet, url, "", "Authorization", t.authorization)
			switch {
			case err != nil:
				return err
			case resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusTooManyRequests:
				t.refused.Add(1)
			case resp.StatusCode >= 400:
				return fmt.Errorf("the API has answered %s", resp.Status)
			}
		}
		return nil
	})
	log.Printf("%d calls made, %d of them refused", t.made.Load(), t.refused.Load())
	return err
}
