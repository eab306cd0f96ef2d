// Command proxy is a reverse proxy that keeps the limits of APIs for programs in any language.
//
//	go run ./examples/proxy -limits examples/proxy/limits.json -addr 127.0.0.1:8080
//	curl http://127.0.0.1:8080/github/users/octocat
//
// The file names the APIs. Each has a URL, limits as outbound.ParseLimit reads them, and the
// longest wait. A request to /github/… goes to the URL of "github" when its limits admit it. A
// request that would wait longer gets a 429 with the time in Retry-After. A client that gives up
// early is not charged. The page with all limits is at /debug/dripfeed, and the numbers for
// Prometheus are at /metrics.
//
// Without -limits the program starts an API on this machine, sends ten requests to it through the
// proxy, and ends: look at when they are answered.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

const shows = "A proxy keeps the limits of APIs for other programs."

var example = cli.Example{Name: "proxy", Usage: shows + "\n\n\tgo run ./examples/proxy [flags]", New: program}

func main() { example.Main() }

func program(flags *flag.FlagSet) cli.Run {
	addr := flags.String("addr", "127.0.0.1:0", "where to serve")
	file := flags.String("limits", "", "a JSON `file`, such as limits.json")
	return func(ctx context.Context, out io.Writer) error {
		fmt.Fprintln(out, shows)
		if *file == "" {
			return show(ctx, out, *addr)
		}
		text, err := os.ReadFile(*file)
		if err != nil {
			return err
		}
		return serve(ctx, text, *addr, func(url string) {
			fmt.Fprintf(out, "\n%s/\n%[1]s/debug/dripfeed\n%[1]s/metrics\n", url)
			<-ctx.Done()
		})
	}
}

// api is an entry of the file.
type api struct {
	URL     string           `json:"url"`
	Limits  []outbound.Limit `json:"limits"`
	Profile string           `json:"profile"` // that reads the API's answers
	MaxWait string           `json:"maxWait"` // 10s unless it is set
}

// handler returns the proxy of the APIs in a file.
func handler(text []byte) (http.Handler, error) {
	var apis map[string]api
	if err := json.Unmarshal(text, &apis); err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	board, mux := new(watch.Board), http.NewServeMux()
	mux.Handle("/debug/dripfeed", board)
	mux.Handle("/metrics", board.Metrics())
	for name, a := range apis {
		p, err := a.proxy(name, board)
		if err != nil {
			return nil, fmt.Errorf("limits of %q: %w", name, err)
		}
		mux.Handle("/"+name+"/", http.StripPrefix("/"+name, p))
	}
	return mux, nil
}

func (a api) proxy(name string, board *watch.Board) (http.Handler, error) {
	to, err := url.Parse(a.URL)
	if err != nil || to.Host == "" {
		return nil, fmt.Errorf("no URL with a host: %q", a.URL)
	}
	wait := 10 * time.Second
	if a.MaxWait != "" {
		if wait, err = time.ParseDuration(a.MaxWait); err != nil {
			return nil, err
		}
	}
	reads := profile.Generic
	if a.Profile != "" {
		known := false
		if reads, known = profile.ByName(a.Profile); !known {
			return nil, fmt.Errorf("no profile %q", a.Profile)
		}
	}
	bucket, err := outbound.NewBucket(name, a.Limits...)
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &transport.Transport{
			Limiter:   board.Add(name, queue.New(bucket, queue.Config{MaxWait: wait})),
			Profile:   reads,
			OnRefusal: transport.TooManyRequests, // the other program gets a 429
		},
	}, nil
}

// serve serves the proxy while f runs with its URL.
func serve(ctx context.Context, text []byte, addr string, f func(url string)) error {
	h, err := handler(text)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	f("http://" + listener.Addr().String())
	_ = server.Close()
	<-served
	return nil
}

// show sends ten requests through the proxy to an API on this machine, which allows five a second.
func show(ctx context.Context, out io.Writer, addr string) error {
	strict := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(5, time.Second)}}
	server := httptest.NewServer(strict)
	defer server.Close()
	text := fmt.Sprintf(`{"local": {"url": %q, "limits": ["5 per 1s"], "maxWait": "1500ms"}}`, server.URL)
	err := serve(ctx, []byte(text), addr, func(url string) {
		begin, printing := time.Now(), sync.Mutex{}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				resp, err := http.Get(url + "/local/items")
				if err != nil {
					return
				}
				_ = resp.Body.Close()
				printing.Lock()
				defer printing.Unlock()
				fmt.Fprintf(out, "%4d ms: %s %s\n", time.Since(begin).Milliseconds(), resp.Status, resp.Header.Get("Retry-After"))
			})
		}
		all.Wait()
	})
	r := strict.Report()
	fmt.Fprintf(out, "The API has got %d requests and refused %d.\n", r.Arrivals, r.Refused)
	return err
}
