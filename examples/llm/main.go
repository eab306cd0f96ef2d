// Command llm asks two language models, each within its own limits on requests and on
// tokens, per minute and per day.
//
//	go run ./examples/llm [-real]
//
// A program knows how many tokens an answer has only when it has the answer. So each call
// takes an estimate, the tokens of the question and those that answers have had lately, and
// settles when the end of the answer tells the real number. The API is one on this machine
// that behaves as OpenAI does, with a minute of one second, so that there is something to
// see. Look at how much of the rate is used, how few calls the API refuses, and how many
// requests of the day are left.
//
// The limits are windows: as many calls go at once as there is room for, whether the API counts
// its minutes in windows or in buckets. The day is a window of 24 hours, which is right whenever
// the API's day begins; no answer tells of it. outbound.Daily is for a quota that comes back at
// a midnight that is known: around it the quotas of two days may go.
//
// With -real it asks api.openai.com three times for the list of its models, which costs
// nothing, with the key in OPENAI_API_KEY.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
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
	requests = iota
	tokens
)

// What the API allows for each model. Its minute is a second here.
const (
	requestsPerMinute = 100
	tokensPerMinute   = 20_000
	requestsPerDay    = 10_000
	tokensPerDay      = 2_000_000
	runFor            = 4 * time.Second
)

// limits returns those of a model. It leaves 5 % of the tokens alone, because calls may use more
// than their estimates.
func limits(minute time.Duration) []outbound.Limit {
	day := 24 * 60 * minute
	return []outbound.Limit{
		outbound.Window(requestsPerMinute, minute).Of(requests, "requests per minute"),
		outbound.Window(tokensPerMinute*0.95, minute).Of(tokens, "tokens per minute"),
		outbound.Window(requestsPerDay, day).Of(requests, "requests per day"),
		outbound.Window(tokensPerDay*0.95, day).Of(tokens, "tokens per day"),
	}
}

// shows is what the program shows, in a line.
const shows = "Two language models are asked, each within its limits."

func main() {
	isReal := flag.Bool("real", false, "call api.openai.com, with OPENAI_API_KEY")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "%s\n\n\tgo run ./examples/llm [-real]\n\n", shows)
		flag.PrintDefaults()
	}
	flag.Parse()
	key := os.Getenv("OPENAI_API_KEY")
	switch {
	case flag.NArg() > 0:
		flag.Usage()
		os.Exit(2)
	case *isReal && key == "":
		fmt.Fprintln(os.Stderr, "llm: -real needs OPENAI_API_KEY")
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *isReal {
		err = list(ctx, http.DefaultTransport, key, os.Stdout)
	} else {
		err = run(ctx, newAPI(), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "llm:", err)
		stop()
		os.Exit(1)
	}
}

// model is what the program keeps for each model, which has limits of its own.
type model struct {
	name     string
	bucket   *outbound.Bucket
	limiter  outbound.Limiter
	estimate outbound.Estimate

	mu      sync.Mutex // protects the fields below
	calls   int
	refused int
	tokens  float64
}

func newModel(name string, limits []outbound.Limit) (*model, error) {
	bucket, err := outbound.NewBucket(name, limits...)
	if err != nil {
		return nil, err
	}
	return &model{name: name, bucket: bucket, limiter: queue.New(bucket, queue.Config{}),
		estimate: outbound.Estimate{Bucket: bucket, First: outbound.Cost{tokens: 300}}}, nil
}

// leftToday returns how many requests of the day are left.
func (m *model) leftToday(ctx context.Context) (float64, error) {
	all, err := m.bucket.States(ctx)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(all, func(s outbound.State) bool { return s.Limit.Name == "requests per day" })
	return all[i].Remaining, nil
}

// client returns a client for the model. The end of an answer tells what it has cost.
func (m *model) client(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &transport.Transport{
		Base:    base,
		Limiter: m.limiter,
		Cost:    func(req *http.Request) outbound.Cost { return m.estimate.Cost(known(req)) },
		Profile: profile.OpenAI,
		Units:   map[string]int{"requests": requests, "tokens": tokens},
		OnResponse: func(resp *http.Response, p *outbound.Permit) {
			transport.AtEnd(resp, 256, func(tail []byte) {
				if n, ok := usage(tail); ok {
					used := outbound.Cost{requests: 1, tokens: n}
					p.Settle(used)
					m.estimate.Learn(known(resp.Request), used)
				}
			})
		},
	}}
}

// known is the known part of a request's cost: four bytes are a token.
func known(req *http.Request) outbound.Cost {
	return outbound.Cost{requests: 1, tokens: float64(max(0, req.ContentLength)) / 4}
}

// usage finds the tokens that an answer has used, at its end.
func usage(tail []byte) (float64, bool) {
	_, after, ok := strings.Cut(string(tail), `"total_tokens":`)
	if !ok {
		return 0, false
	}
	digits := strings.TrimLeft(after, " ")
	digits = digits[:len(digits)-len(strings.TrimLeft(digits, "0123456789"))]
	n, err := strconv.ParseFloat(digits, 64)
	return n, err == nil
}

// run lets workers ask both models until the time is up.
func run(ctx context.Context, api http.RoundTripper, out io.Writer) error {
	until, cancel := context.WithTimeout(ctx, runFor)
	defer cancel()
	var all sync.WaitGroup
	var models []*model
	for _, name := range []string{"small", "large"} {
		m, err := newModel(name, limits(time.Second))
		if err != nil {
			return err
		}
		models = append(models, m)
		client := m.client(api)
		for worker := range 20 {
			all.Go(func() { m.work(until, client, worker) })
		}
	}
	all.Wait()
	fmt.Fprintf(out, "%s\nThe API is on this machine, and its minute has 1 s.\n\n", shows)
	fmt.Fprintf(out, "%-6s %6s %8s %8s %13s %11s\n", "model", "calls", "refused", "tokens", "of the rate", "left today")
	for _, m := range models {
		left, err := m.leftToday(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-6s %6d %8d %8.0f %11.0f %% %11.0f\n", m.name, m.calls, m.refused, m.tokens, 100*m.tokens/(tokensPerMinute*runFor.Seconds()), left)
	}
	return ctx.Err()
}

// work is one worker: it asks one question after the other.
func (m *model) work(ctx context.Context, client *http.Client, worker int) {
	for n := 0; ; n++ {
		question := fmt.Sprintf(`{"model": %q, "messages": [{"role": "user", "content": "%d.%d: %s"}]}`, m.name, worker, n, strings.Repeat("why? ", 20+(worker*7+n)%40))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.openai.com/v1/chat/completions", strings.NewReader(question))
		if err != nil {
			return
		}
		req.Header.Set("X-Model", m.name) // the API of the demonstration reads no bodies, and finds the model here
		resp, err := client.Do(req)
		if err != nil {
			return // the time is up
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		used, _ := usage(text)
		m.mu.Lock()
		m.calls++
		m.tokens += used
		if resp.StatusCode == http.StatusTooManyRequests {
			m.refused++
		}
		m.mu.Unlock()
	}
}

// newAPI returns the API of the demonstration. It asks for the tokens of the question and
// counts those of the answer, too.
func newAPI() *outboundtest.API {
	perModel := func(req *http.Request) string { return req.Header.Get("X-Model") }
	asked := func(req *http.Request) float64 { return float64(req.ContentLength) / 4 }
	api := outboundtest.OpenAI(
		outboundtest.LeakyBucket(requestsPerMinute, requestsPerMinute).Of("requests", nil).By(perModel),
		outboundtest.LeakyBucket(tokensPerMinute, tokensPerMinute).Of("tokens", asked).Settle(total).By(perModel))
	api.Latency, api.Jitter = 50*time.Millisecond, 100*time.Millisecond
	api.Next = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := strings.Repeat("because ", int(total(req)/2))
		_ = json.NewEncoder(w).Encode(map[string]any{
			"choices": []any{map[string]any{"message": map[string]any{"role": "assistant", "content": answer}}},
			"usage":   map[string]any{"total_tokens": int(total(req))},
		})
	})
	return api
}

// total is the tokens of a question and its answer. The question's length decides both here:
// some 250 to 650.
func total(req *http.Request) float64 {
	return float64(200 + req.ContentLength*7%400 + req.ContentLength/4)
}

// list asks the real API for its models.
func list(ctx context.Context, base http.RoundTripper, key string, out io.Writer) error {
	m, err := newModel("models", limits(time.Minute))
	if err != nil {
		return err
	}
	client := m.client(base)
	for range 3 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.openai.com/v1/models", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s, %d bytes\n", resp.Status, n)
		if resp.StatusCode >= 400 {
			return fmt.Errorf("the API has answered %s", resp.Status)
		}
	}
	return nil
}
