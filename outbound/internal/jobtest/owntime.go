package jobtest

import (
	"context"
	"net/http"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
	"github.com/dripfeed/dripfeed/transport"
)

// OwnTime returns jobs whose own time is over when they ask a limiter, by name. A job fails
// whenever it runs, as the handler of kubernetes#137694 does with a limiter of client-go.
func OwnTime() map[string]func(context.Context) error {
	const all, most = 50 * time.Millisecond, 30 * time.Millisecond // of the time of a job
	const url = "https://api.example.com"
	base := roundTrip(func(r *http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}, Request: r}
		if r.URL.Path == "/slow" {
			time.Sleep(most)
			resp.StatusCode = http.StatusFound
			resp.Header.Set("Location", url)
		}
		return resp, nil
	})
	of := func(perSecond float64) *outbound.Bucket {
		return outbound.Must(outbound.NewBucket("inside", outbound.PerSecond(perSecond)))
	}
	paced := func(l outbound.Limiter, timeout time.Duration) *http.Client {
		return &http.Client{Transport: &transport.Transport{Base: base, Limiter: l}, Timeout: timeout}
	}
	free := queue.New(of(1000), queue.Config{})
	// Each run has a limiter of its own, because runs may come soon after each other: its first call
	// leaves immediately, and its second could leave a second later.
	busy := func() outbound.Limiter { return queue.New(of(1), queue.Config{}) }
	after := func(work func(context.Context), l outbound.Limiter) func(context.Context) error {
		client := paced(l, 0)
		return func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, all)
			defer cancel()
			work(ctx)
			return Get(ctx, client, url)
		}
	}
	whole := func(ctx context.Context) { <-ctx.Done() }
	scheduler := paced(jobs.New(of(1000), jobs.Config{}), 0)
	return map[string]func(context.Context) error{
		"over, at a bucket":    after(whole, of(1000)),
		"over, at a queue":     after(whole, free),
		"over, at a Scheduler": after(whole, jobs.New(of(1000), jobs.Config{})),
		"cancelled by itself": func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return Get(ctx, scheduler, url)
		},
		"nearly over": func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, all)
			defer cancel()
			tight := paced(busy(), 0)
			if err := Get(ctx, tight, url); err != nil {
				return err
			}
			time.Sleep(most)
			return Get(ctx, tight, url)
		},
		"nearly over, by the client": func(ctx context.Context) error { return Get(ctx, paced(busy(), all), url+"/slow") },
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
