package stream_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/stream"
	"github.com/dripfeed/dripfeed/queue"
)

// An upload and a download share a link of 500,000 bytes a second. One of a gigabyte could not be
// there within a minute, and is not begun.
func ExamplePacer() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, _ := io.Copy(io.Discard, r.Body); n > 0 {
			fmt.Fprint(w, n)
			return
		}
		_, _ = w.Write(make([]byte, 50_000))
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	bucket := outbound.Must(outbound.NewBucket("link", outbound.PerSecond(500_000).Burst(10_000)))
	pacer := stream.Pacer{Limiter: queue.New(bucket, queue.Config{})}
	start := time.Now()
	var both sync.WaitGroup
	both.Go(func() {
		const size = 50_000
		body, err := pacer.Reader(ctx, zeros(size), size)
		if err != nil {
			fmt.Println(err)
			return
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL, body)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.ContentLength = size // http cannot see it in the reader
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
	})
	both.Go(func() {
		resp, err := http.Get(server.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, err := pacer.Reader(ctx, resp.Body, resp.ContentLength)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer body.Close()
		if _, err := io.Copy(io.Discard, body); err != nil {
			fmt.Println(err)
		}
	})
	both.Wait()
	fmt.Println("both took 0.18 s or more:", time.Since(start) > 180*time.Millisecond)

	_, err := pacer.Writer(ctx, io.Discard, 1e9)
	fmt.Println("a gigabyte:", err != nil)
	// Output:
	// both took 0.18 s or more: true
	// a gigabyte: true
}
