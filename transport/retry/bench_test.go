package retry

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

type fullBody struct{}

func (fullBody) Read(p []byte) (int, error) { return len(p), nil }
func (fullBody) Close() error               { return nil }

// BenchmarkRetry measures what a client adds to its transport. What an http.Client takes by itself is in all that follow
// it, and what retryablehttp takes without this package in the last two.
func BenchmarkRetry(b *testing.B) {
	for _, c := range []struct {
		name string
		send func(*transport.Transport) func(*http.Request) (*http.Response, error)
	}{
		{"Transport", func(t *transport.Transport) func(*http.Request) (*http.Response, error) { return t.RoundTrip }},
		{"http.Client", func(t *transport.Transport) func(*http.Request) (*http.Response, error) {
			return (&http.Client{Transport: t}).Do
		}},
		{"bare retryablehttp", func(t *transport.Transport) func(*http.Request) (*http.Response, error) {
			client := retryablehttp.NewClient()
			client.HTTPClient = &http.Client{Transport: t}
			client.Logger = nil
			return client.StandardClient().Transport.RoundTrip
		}},
		{"StandardClient", func(t *transport.Transport) func(*http.Request) (*http.Response, error) {
			return NewClient(t).StandardClient().Transport.RoundTrip
		}},
		{"Client", func(t *transport.Transport) func(*http.Request) (*http.Response, error) {
			client := NewClient(t)
			return func(req *http.Request) (*http.Response, error) {
				return client.Do(&retryablehttp.Request{Request: req.WithContext(req.Context())})
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Date": {"Tue, 01 Sep 2026 12:00:00 GMT"}}}
			// It is always the same response, so that the benchmark measures only what is around it.
			instant := base(func(*http.Request) (*http.Response, error) { return resp, nil })
			do := c.send(&transport.Transport{Base: instant, Limiter: bucket(b, outbound.Limit{Capacity: 1e9, LeakRate: 1e9})})
			ctx, cancel := context.WithCancel(context.WithValue(context.Background(), io.EOF, 1)) // as contexts of programs, which are not empty
			defer cancel()
			req := must(http.NewRequestWithContext(ctx, http.MethodGet, "https://api.example.com/search/?q=x", nil))
			b.ReportAllocs()
			for b.Loop() {
				resp.Body = fullBody{}
				if _, err := do(req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
