// Command shopify updates the products of a shop from four workers, by the leaky bucket that
// Shopify publishes: 40 calls, and 2 leak in a second.
//
//	go run ./examples/shopify [-real]
//
// A literal outbound.Limit fits here better than a window: the API's own bucket admits 40 calls in
// one burst, and 2 more after a second. outbound.Window(40, 20*time.Second) would wait for 20 s,
// and outbound.PerSecond(2) would make the first 40 take 20 s.
//
// The API is one on this machine that behaves as Shopify's REST API does, ten times as fast, so
// that there is something to see. Look at the first line: 38 calls leave in one burst, and then as
// many as leak. After two seconds another program fills the bucket. When the API refuses a call of
// one worker, all wait for the 2.0 seconds that it asks for, and that worker makes its call again.
//
// With -real it asks a shop five times for its own name: the shop in SHOPIFY_SHOP, such as
// example or example.myshopify.com, with the token in SHOPIFY_TOKEN.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

const shows = "Four workers share the leaky bucket of a shop at Shopify."

var example = cli.Example{Name: "shopify", Usage: shows + "\n\n\tgo run ./examples/shopify [-real]", New: program}

func main() { example.Main() }

func program(flags *flag.FlagSet) cli.Run {
	isReal := flags.Bool("real", false, "call a shop, by SHOPIFY_SHOP and SHOPIFY_TOKEN")
	return func(ctx context.Context, out io.Writer) error {
		if *isReal {
			t, err := real(os.Getenv("SHOPIFY_SHOP"), os.Getenv("SHOPIFY_TOKEN"))
			if err != nil {
				return err
			}
			return t.run(ctx, out)
		}
		fmt.Fprintf(out, "%s\nThe API is on this machine, and ten times as fast.\n\n", shows)
		api := newAPI()
		go others(ctx, api)
		return demo(api).run(ctx, out)
	}
}

// task is what the workers do together.
type task struct {
	base  http.RoundTripper
	limit outbound.Limit
	url   string
	token string
	calls int32 // in all

	next, done, refused atomic.Int32
}

// newAPI returns the API of the demonstration.
func newAPI() *outboundtest.API {
	api := outboundtest.ShopifyREST(outboundtest.LeakyBucket(40, 20))
	api.Latency = 20 * time.Millisecond
	return api
}

// demo stays a little below the API's limits: calls that left exactly in time may arrive
// closer together.
func demo(api http.RoundTripper) *task {
	return &task{base: api, limit: outbound.Limit{Capacity: 38, LeakRate: 20}, calls: 120,
		url: "https://example.myshopify.com/admin/api/2026-01/products.json"}
}

var shopName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

// real returns the task for a shop. The token goes nowhere else.
func real(shop, token string) (*task, error) {
	name := strings.TrimSuffix(shop, ".myshopify.com")
	if !shopName.MatchString(name) {
		return nil, cli.Wrong("-real needs SHOPIFY_SHOP: %q is not the name of a shop", shop)
	}
	if token == "" {
		return nil, cli.Wrong("-real needs SHOPIFY_TOKEN")
	}
	return &task{base: http.DefaultTransport, limit: outbound.Limit{Capacity: 38, LeakRate: 2}, calls: 5, token: token,
		url: "https://" + name + ".myshopify.com/admin/api/2026-01/shop.json?fields=name"}, nil
}

// others are calls of other programs, which the bucket here does not count.
func others(ctx context.Context, api http.RoundTripper) {
	for i := range 500 {
		if i == 0 && !calls.Sleep(ctx, 2*time.Second) {
			return
		}
		go calls.Get(ctx, &http.Client{Transport: api}, "https://example.myshopify.com/admin/api/2026-01/orders.json")
		time.Sleep(time.Millisecond)
	}
}

// run lets the workers make all the calls.
func (t *task) run(ctx context.Context, out io.Writer) error {
	log := calls.NewLog(out)
	bucket, err := outbound.NewBucket("shop", t.limit)
	if err != nil {
		return err
	}
	limiter := outbound.Observe(queue.New(bucket, queue.Config{}), "shop", func(_ context.Context, e outbound.Event) {
		if e.Kind == outbound.EventHeld {
			log.Printf("the API asks to wait %v", e.Hold)
		}
	})
	client := &http.Client{Transport: &transport.Transport{Base: t.base, Limiter: limiter, Profile: profile.Shopify}}
	err = calls.Together(4, func(int) error {
		for t.next.Add(1) <= t.calls {
			if err := t.call(ctx, client, log); err != nil {
				return err
			}
		}
		return nil
	})
	log.Printf("%d calls made, %d times one was refused", t.done.Load(), t.refused.Load())
	return err
}

// call makes a call, and makes it again if the API refuses it. The worker need not sleep before
// that: all workers wait until the API admits calls.
func (t *task) call(ctx context.Context, client *http.Client, log *calls.Log) error {
	for {
		resp, err := calls.Do(ctx, client, http.MethodGet, t.url, "", "X-Shopify-Access-Token", t.token)
		switch {
		case err != nil:
			return err
		case resp.StatusCode == http.StatusTooManyRequests:
			t.refused.Add(1)
			continue
		case resp.StatusCode >= 400:
			return fmt.Errorf("the API has answered %s", resp.Status)
		}
		if done := t.done.Add(1); done%38 == 0 {
			log.Printf("%d calls; the API's bucket: %s", done, resp.Header.Get("X-Shopify-Shop-Api-Call-Limit"))
		}
		return nil
	}
}
