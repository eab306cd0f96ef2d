// Command llm asks two language models, each within its own limits on requests and on
// tokens, per minute and per day.
//
//	go run ./examples/llm [-real]
//
// A program knows how many tokens an answer has only when it has the answer. So each call takes an
// estimate, the tokens of the question and of recent answers, and settles for the real number at
// the end of the answer. The API is one on this machine that behaves as OpenAI does, with a minute
// of one second, so that there is something to see. Look at how much of the rate is used, how few
// calls the API refuses, and how many requests of the day are left.
//
// The limits are those that package estimate advises. Requests are evenly spaced. Tokens are
// counted in windows. The day is a window of 24 hours, because no answer has the beginning of the
// API's day. outbound.Daily is for a quota that is reset at a known midnight: two quotas may leave
// around it.
//
// With -real it asks api.openai.com three times for the list of its models, which costs
// nothing, with the key in OPENAI_API_KEY.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	shared "github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/estimate"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

const shows = "Two language models are asked, each within its limits."

var example = cli.Example{Name: "llm", Usage: shows + "\n\n\tgo run ./examples/llm [-real]", New: program}

func main() { example.Main() }

func program(flags *flag.FlagSet) cli.Run {
	isReal := flags.Bool("real", false, "call api.openai.com, with OPENAI_API_KEY")
	return func(ctx context.Context, out io.Writer) error {
		if key := os.Getenv("OPENAI_API_KEY"); *isReal && key == "" {
			return cli.Wrong("-real needs OPENAI_API_KEY")
		} else if *isReal {
			return list(ctx, http.DefaultTransport, key, out)
		}
		return run(ctx, newAPI(), out)
	}
}

// The units of a cost.
const requests, tokens = 0, 1

// What the API allows for each model. Its minute is a second here.
const (
	requestsPerMinute = 100
	tokensPerMinute   = 20_000
	requestsPerDay    = 10_000
	tokensPerDay      = 2_000_000
	runFor            = 4 * time.Second
)

// ofDay is the index of the requests per day among the limits.
const ofDay = 2

// limits returns those of a model. It leaves 5 % of the tokens alone, because calls may use more
// than their estimates.
func limits(minute time.Duration) []outbound.Limit {
	day := 24 * 60 * minute
	return []outbound.Limit{
		outbound.Per(requestsPerMinute, minute).Of(requests, "requests per minute"),
		outbound.Window(tokensPerMinute*0.95, minute).Of(tokens, "tokens per minute"),
		outbound.Window(requestsPerDay, day).Of(requests, "requests per day"),
		outbound.Window(tokensPerDay*0.95, day).Of(tokens, "tokens per day"),
	}
}

// model is what the program keeps for each model, which has limits of its own.
type model struct {
	name                 string
	bucket               *outbound.Bucket
	limiter              outbound.Limiter
	average              estimate.Average
	client               *http.Client
	calls, refused, used atomic.Int64
}

// newModel returns a model with its client. The end of an answer has its cost.
func newModel(base http.RoundTripper, name string, limits []outbound.Limit) *model {
	bucket := outbound.Must(outbound.NewBucket(name, limits...))
	m := &model{name: name, bucket: bucket, limiter: queue.New(bucket, queue.Config{}),
		average: estimate.Average{Bucket: bucket, First: outbound.Cost{tokens: 300}}}
	m.client = &http.Client{Transport: &transport.Transport{
		Base:    base,
		Limiter: m.limiter,
		Cost:    func(req *http.Request) outbound.Cost { return m.average.Cost(known(req)) },
		Profile: profile.OpenAI,
		Units:   map[string]int{"requests": requests, "tokens": tokens},
		OnResponse: func(resp *http.Response, p *outbound.Permit) {
			transport.AtEnd(resp, 256, func(tail []byte) {
				if found := usage.FindSubmatch(tail); found != nil {
					n, _ := strconv.Atoi(string(found[1]))
					used := outbound.Cost{requests: 1, tokens: float64(n)}
					p.Settle(used)
					m.average.Learn(known(resp.Request), used)
					m.used.Add(int64(n))
				}
			})
		},
	}}
	return m
}

// known is the known part of a request's cost: four bytes are a token.
func known(req *http.Request) outbound.Cost {
	return outbound.Cost{requests: 1, tokens: float64(max(0, req.ContentLength)) / 4}
}

// usage finds the tokens that an answer has used, at its end.
var usage = regexp.MustCompile(`"total_tokens": ?([0-9]+)`)

// run lets workers ask both models until the time is up.
func run(ctx context.Context, api http.RoundTripper, out io.Writer) error {
	until, cancel := context.WithTimeout(ctx, runFor)
	defer cancel()
	models := []*model{newModel(api, "small", limits(time.Second)), newModel(api, "large", limits(time.Second))}
	_ = shared.Together(40, func(worker int) error { return models[worker%2].work(until, worker) }) // the time is up
	fmt.Fprintf(out, "%s\nThe API is on this machine, and its minute has 1 s.\n\n", shows)
	fmt.Fprintf(out, "%-6s %6s %8s %8s %13s %11s\n", "model", "calls", "refused", "tokens", "of the rate", "left today")
	for _, m := range models {
		states, err := m.bucket.States(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		used := float64(m.used.Load())
		fmt.Fprintf(out, "%-6s %6d %8d %8.0f %11.0f %% %11.0f\n", m.name, m.calls.Load(), m.refused.Load(), used,
			100*used/(tokensPerMinute*runFor.Seconds()), states[ofDay].Remaining)
	}
	return ctx.Err()
}

// work is one worker: it asks one question after the other.
func (m *model) work(ctx context.Context, worker int) error {
	for n := 0; ; n++ {
		question := fmt.Sprintf(`{"model": %q, "messages": [{"role": "user", "content": "%d.%d: %s"}]}`, m.name, worker, n, strings.Repeat("why? ", 20+(worker*7+n)%40))
		// The API of the demonstration reads no bodies, and finds the model in a header.
		resp, err := shared.Do(ctx, m.client, http.MethodPost, "https://api.openai.com/v1/chat/completions", question, "X-Model", m.name)
		if err != nil {
			return err
		}
		m.calls.Add(1)
		if resp.StatusCode == http.StatusTooManyRequests {
			m.refused.Add(1)
		}
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
		fmt.Fprintf(w, `{"choices": [{"message": {"role": "assistant", "content": "%s"}}], "usage": {"total_tokens": %.0f}}`, strings.Repeat("because ", int(total(req)/2)), total(req))
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
	m := newModel(base, "models", limits(time.Minute))
	for range 3 {
		resp, err := shared.Do(ctx, m.client, http.MethodGet, "https://api.openai.com/v1/models", "", "Authorization", "Bearer "+key)
		if err != nil {
			return err
		}
		if resp.StatusCode >= 400 {
			return fmt.Errorf("the API has answered %s", resp.Status)
		}
		fmt.Fprintln(out, resp.Status)
	}
	return nil
}
