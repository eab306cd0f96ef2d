package transport_test

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }

// BenchmarkRoundTrip measures what a Transport adds to a Base that replies immediately. The floor is
// the case base. The bucket's part of the case bucket is BenchmarkDecision of package outbound.
func BenchmarkRoundTrip(b *testing.B) {
	wide := outbound.Limit{Capacity: 1e9, LeakRate: 1e9}
	one, two := bucket(wide), bucket(wide, outbound.Limit{Capacity: 1e9, LeakRate: 1e9, Name: "other"})
	all := func(string) outbound.Limiter { return one }
	byRoute := must(transport.ByRoute(map[string]outbound.Limiter{"GET api.example.com/search/": one, "/": nil}))
	// The response is always the same one, so that only the Transport allocates.
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Date": {"Tue, 01 Sep 2026 12:00:00 GMT"}}}
	base := roundTripper(func(*http.Request) (*http.Response, error) { return resp, nil })
	five := &transport.Pool{}
	for range 5 {
		five.Members = append(five.Members, &transport.Transport{Base: base, Limiter: bucket(wide)})
	}
	for _, c := range []struct {
		name string
		rt   http.RoundTripper
	}{
		{"base", base},
		{"not paced", &transport.Transport{Base: base}},
		{"bucket", &transport.Transport{Base: base, Limiter: one}},
		{"bucket of two limits", &transport.Transport{Base: base, Limiter: two}},
		{"bucket and OnResponse", &transport.Transport{Base: base, Limiter: one, OnResponse: ignore}},
		{"ByHost", &transport.Transport{Base: base, For: transport.ByHost(all)}},
		{"ByHeader", &transport.Transport{Base: base, For: transport.ByHeader("Authorization", all)}},
		{"ByRoute", &transport.Transport{Base: base, For: byRoute}},
		{"pool of five", five},
	} {
		b.Run(c.name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(context.WithValue(context.Background(), io.EOF, 1)) // as contexts of programs, which are not empty
			defer cancel()
			req := must(http.NewRequestWithContext(ctx, http.MethodGet, "https://api.example.com/search/?q=x", nil))
			req.Header.Set("Authorization", "Bearer token")
			b.ReportAllocs()
			for b.Loop() {
				resp.Body = endless{}
				_, err := c.rt.RoundTrip(req)
				fatalIf(b, err != nil, "%v", err)
			}
		})
	}
}
