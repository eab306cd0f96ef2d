package transport_test

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/transport"
)

// withKey adds a key of the API to each request.
type withKey struct {
	key  string
	base http.RoundTripper
}

func (w withKey) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context()) // a RoundTripper must not change its request
	req.Header.Set("Authorization", "Bearer "+w.key)
	return w.base.RoundTrip(req)
}

// An API gives two projects a key each, with a request an hour. Each request goes by the key that can
// send it soonest. With a queue around each bucket, the third request would wait.
func ExamplePool() {
	api := outboundtest.OpenAI(outboundtest.SlidingLog(1, time.Hour).
		By(func(req *http.Request) string { return req.Header.Get("Authorization") }))
	pool := &transport.Pool{}
	for _, key := range []string{"blue", "green"} {
		bucket := outbound.Must(outbound.NewBucket(key, outbound.PerHour(1)))
		pool.Members = append(pool.Members, &transport.Transport{
			Limiter: bucket, // a queue around it waits
			Base:    withKey{key, api},
		})
	}
	client := &http.Client{Transport: pool}
	for range 3 {
		resp, err := client.Get("https://api.openai.com/v1/models")
		if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
			fmt.Println("refused by both, retry in", full.RetryAfter.Round(time.Hour))
			continue
		} else if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.StatusCode)
	}
	// Output:
	// 200
	// 200
	// refused by both, retry in 1h0m0s
}
