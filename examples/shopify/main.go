// Command shopify updates the products of a shop from four workers, by the leaky bucket that
// Shopify publishes: 40 calls, of which 2 run out in a second.
//
//	go run ./examples/shopify [-real]
//
// A literal outbound.Limit is right here, and no window is: the API's own bucket lets 40 calls
// go at once and has room for 2 more after a second. outbound.Window(40, 20*time.Second) would
// wait for 20 s, and outbound.PerSecond(2) would make the first 40 take 20 s.
//
// The API is one on this machine that behaves as Shopify's REST API does, ten times as fast,
// so that there is something to see. Look at the first line: 38 calls go at once, and then as
// many as run out. After two seconds somebody else fills the bucket. When the API refuses a
// call of one worker, all wait for the 2.0 seconds that it asks for, and that worker makes
// its call again.
//
// With -real it asks a shop five times for its own name: the shop in SHOPIFY_SHOP, such as
// example or example.myshopify.com, with the token in SHOPIFY_TOKEN.
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
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// task is what the workers do together.
type task struct {
	base  http.RoundTripper
	limit outbound.Limit
	url   string
	token string
	calls int // in all

	mu      sync.Mutex // protects the fields below
	out     io.Writer
	begin   time.Time
	next    int
	done    int
	refused int
}

// shows is what the program shows, in a line.
const shows = "Four workers share the leaky bucket of a shop at Shopify."

func main() {
	isReal := flag.Bool("real", false, "call a shop, by SHOPIFY_SHOP and SHOPIFY_TOKEN")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "%s\n\n\tgo run ./examples/shopify [-real]\n\n", shows)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	fmt.Println(shows)
	var t *task
	if *isReal {
		var err error
		if t, err = real(os.Getenv("SHOPIFY_SHOP"), os.Getenv("SHOPIFY_TOKEN"), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "shopify:", err)
			stop()
			os.Exit(2)
		}
	} else {
		fmt.Printf("The API is on this machine, and ten times as fast.\n\n")
		api := newAPI()
		t = demo(api, os.Stdout)
		go others(ctx, api)
	}
	if err := t.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "shopify:", err)
		stop()
		os.Exit(1)
	}
}

// newAPI returns the API of the demonstration.
func newAPI() *outboundtest.API {
	api := outboundtest.ShopifyREST(outboundtest.LeakyBucket(40, 20))
	api.Latency = 20 * time.Millisecond
	return api
}

// demo stays a little below the API's limits: calls that left exactly in time may arrive
// closer together.
func demo(api http.RoundTripper, out io.Writer) *task {
	return &task{base: api, limit: outbound.Limit{Capacity: 38, LeakRate: 20}, out: out, calls: 120,
		url: "https://example.myshopify.com/admin/api/2026-01/products.json"}
}

var shopName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

// real returns the task for a shop. The token goes nowhere else.
func real(shop, token string, out io.Writer) (*task, error) {
	name := strings.TrimSuffix(shop, ".myshopify.com")
	if !shopName.MatchString(name) {
		return nil, fmt.Errorf("-real needs SHOPIFY_SHOP: %q is not the name of a shop", shop)
	}
	if token == "" {
		return nil, errors.New("-real needs SHOPIFY_TOKEN")
	}
	return &task{base: http.DefaultTransport, limit: outbound.Limit{Capacity: 38, LeakRate: 2}, out: out, calls: 5, token: token,
		url: "https://" + name + ".myshopify.com/admin/api/2026-01/shop.json?fields=name"}, nil
}

// others are the rest of the shop's staff, whose calls the bucket here does not know.
func others(ctx context.Context, api http.RoundTripper) {
	select {
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
		return
	}
	for range 500 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://example.myshopify.com/admin/api/2026-01/orders.json", nil)
		if err != nil {
			return
		}
		go func() {
			if resp, err := api.RoundTrip(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
		time.Sleep(time.Millisecond)
	}
}

// run lets the workers make all the calls.
func (t *task) run(ctx context.Context) error {
	t.begin = time.Now()
	bucket, err := outbound.NewBucket("shop", t.limit)
	if err != nil {
		return err
	}
	limiter := outbound.Observe(queue.New(bucket, queue.Config{}), "shop", func(_ context.Context, e outbound.Event) {
		if e.Kind == outbound.EventHeld {
			t.printf("%4.1f s  the API asks to wait %v\n", time.Since(t.begin).Seconds(), e.Hold)
		}
	})
	client := &http.Client{Transport: &transport.Transport{Base: t.base, Limiter: limiter, Profile: profile.Shopify}}
	var all sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		all.Go(func() { errs[i] = t.work(ctx, client) })
	}
	all.Wait()
	t.printf("%4.1f s  %d calls made, %d times one was refused\n", time.Since(t.begin).Seconds(), t.done, t.refused)
	return errors.Join(errs...)
}

// work is one worker: it makes one call after the other.
func (t *task) work(ctx context.Context, client *http.Client) error {
	for t.more() {
		for again := true; again; {
			var err error
			if again, err = t.call(ctx, client); err != nil {
				return err
			}
		}
	}
	return nil
}

// call makes a call, and reports whether the API refused it. The worker need not sleep before
// it makes the call again: it waits with all others until the API has room.
func (t *task) call(ctx context.Context, client *http.Client) (refused bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url, nil)
	if err != nil {
		return false, err
	}
	if t.token != "" {
		req.Header.Set("X-Shopify-Access-Token", t.token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return false, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		t.refused++
		return true, nil
	case resp.StatusCode >= 400:
		return false, fmt.Errorf("the API has answered %s", resp.Status)
	}
	if t.done++; t.done%38 == 0 {
		fmt.Fprintf(t.out, "%4.1f s  %d calls; the API's bucket: %s\n", time.Since(t.begin).Seconds(), t.done, resp.Header.Get("X-Shopify-Shop-Api-Call-Limit"))
	}
	return false, nil
}

// more reports whether there is another call to make.
func (t *task) more() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	return t.next <= t.calls
}

func (t *task) printf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, format, args...)
}
