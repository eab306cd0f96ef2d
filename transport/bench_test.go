package transport

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
)

// instant answers at once, with a body and always the same response, so that the benchmark
// measures only what a Transport adds.
type instant struct{ resp *http.Response }

func (b instant) RoundTrip(*http.Request) (*http.Response, error) { return b.resp, nil }

type fullBody struct{}

func (fullBody) Read(p []byte) (int, error) { return len(p), nil }
func (fullBody) Close() error               { return nil }

func benchmark(b *testing.B, rt func(base http.RoundTripper) http.RoundTripper) {
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Date": {"Tue, 01 Sep 2026 12:00:00 GMT"}}, Body: fullBody{}}
	transport := rt(instant{resp})
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), io.EOF, 1)) // as contexts of programs, which are not empty
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.example.com/search/?q=x", nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer token")
	b.ReportAllocs()
	for b.Loop() {
		resp.Body = fullBody{}
		if _, err := transport.RoundTrip(req); err != nil {
			b.Fatal(err)
		}
	}
}

func wide() *outbound.Bucket {
	return outbound.Must(outbound.NewBucket("bench", outbound.Limit{Capacity: 1e9, LeakRate: 1e9}))
}

func BenchmarkBase(b *testing.B) {
	benchmark(b, func(base http.RoundTripper) http.RoundTripper { return base })
}

func BenchmarkNotPaced(b *testing.B) {
	benchmark(b, func(base http.RoundTripper) http.RoundTripper { return &Transport{Base: base} })
}

func BenchmarkBucket(b *testing.B) {
	benchmark(b, func(base http.RoundTripper) http.RoundTripper { return &Transport{Base: base, Limiter: wide()} })
}

func BenchmarkBucketOfTwoLimits(b *testing.B) {
	two := outbound.Must(outbound.NewBucket("bench", outbound.Limit{Capacity: 1e9, LeakRate: 1e9}, outbound.Limit{Capacity: 1e9, LeakRate: 1e9, Name: "other"}))
	benchmark(b, func(base http.RoundTripper) http.RoundTripper { return &Transport{Base: base, Limiter: two} })
}

func BenchmarkBucketAndOnResponse(b *testing.B) {
	benchmark(b, func(base http.RoundTripper) http.RoundTripper {
		return &Transport{Base: base, Limiter: wide(), OnResponse: func(*http.Response, *outbound.Permit) {}}
	})
}

func BenchmarkByHost(b *testing.B) {
	l := wide()
	benchmark(b, func(base http.RoundTripper) http.RoundTripper {
		return &Transport{Base: base, For: ByHost(func(string) outbound.Limiter { return l })}
	})
}

func BenchmarkByHeader(b *testing.B) {
	l := wide()
	benchmark(b, func(base http.RoundTripper) http.RoundTripper {
		return &Transport{Base: base, For: ByHeader("Authorization", func(string) outbound.Limiter { return l })}
	})
}

func BenchmarkByRoute(b *testing.B) {
	byRoute, err := ByRoute(map[string]outbound.Limiter{"GET api.example.com/search/": wide(), "/": nil})
	if err != nil {
		b.Fatal(err)
	}
	benchmark(b, func(base http.RoundTripper) http.RoundTripper { return &Transport{Base: base, For: byRoute} })
}

// BenchmarkAcquireAndDone is the bucket's part of BenchmarkBucket, where the API says
// nothing. The floor is BenchmarkBase.
func BenchmarkAcquireAndDone(b *testing.B) {
	l, ctx := wide(), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		p, err := l.Acquire(ctx, outbound.Cost{1})
		if err != nil {
			b.Fatal(err)
		}
		p.Done()
	}
}
