package transport_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// An API that allows 10 calls in any second never has to refuse one, and gets all that it
// allows.
func TestAQueueKeepsAStrictAPIContentAndBusy(t *testing.T) {
	for _, rules := range [][]outboundtest.Rule{
		{outboundtest.SlidingLog(10, time.Second)},
		{outboundtest.FixedWindow(10, time.Second)},
		{outboundtest.SlidingLog(10, time.Second), outboundtest.InFlight(3)},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := &outboundtest.API{Rules: rules, Latency: 200 * time.Millisecond}
			bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(10), outbound.InFlight(3)))
			client := &http.Client{
				Transport: &transport.Transport{Base: api, Limiter: queue.New(bucket, queue.Config{})},
				Timeout:   time.Hour,
			}
			begin := time.Now()
			var wg sync.WaitGroup
			for range 200 {
				wg.Go(func() {
					resp, err := client.Get("http://api.test/")
					if err != nil {
						t.Error(err)
						return
					}
					resp.Body.Close()
					if resp.StatusCode != http.StatusOK {
						t.Errorf("status %d", resp.StatusCode)
					}
				})
			}
			wg.Wait()
			ideal := time.Duration(199./10*1010)*time.Millisecond + api.Latency
			if took := time.Since(begin); took > ideal+ideal/1000 {
				t.Errorf("%v: took %v, ideal %v", rules, took, ideal)
			}
			if r := api.Report(); r.Refused != 0 || r.Admitted != 200 {
				t.Errorf("%v: %+v", rules, r)
			}
		})
	}
}

func TestClientTimeoutCountsTheQueueAndRefusesEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &outboundtest.API{}
		bucket := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 1, LeakRate: 0.1}))
		client := &http.Client{Transport: &transport.Transport{Base: api, Limiter: queue.New(bucket, queue.Config{})}, Timeout: 5 * time.Second}
		resp, err := client.Get("http://api.test/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		begin := time.Now()
		_, err = client.Get("http://api.test/")
		var full *outbound.ThrottledError
		if !errors.As(err, &full) || full.RetryAfter < 9*time.Second || time.Since(begin) != 0 {
			t.Errorf("after %v: %v; want a refusal at once, with the 10 s that it takes", time.Since(begin), err)
		}
		var outer *url.Error
		if !errors.As(err, &outer) || !outer.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: not a timeout", err)
		}
	})
}

// A refusal by the API slows all who share the bucket, not only the caller that got it.
func TestARefusalHoldsAllWhoShareTheBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Half of what the client is configured for.
		api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.LeakyBucket(5, 5)}, Latency: 50 * time.Millisecond}
		bucket := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 5, LeakRate: 10}))
		client := &http.Client{Transport: &transport.Transport{Base: api, Limiter: queue.New(bucket, queue.Config{})}}
		var wg sync.WaitGroup
		answered := make(chan struct{}, 3000)
		for range 3000 {
			wg.Go(func() {
				resp, err := client.Get("http://api.test/")
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					answered <- struct{}{}
				}
			})
		}
		begin := time.Now()
		wg.Wait()
		used := float64(len(answered)) / (5 * time.Since(begin).Seconds())
		if r := api.Report(); r.Refused > 300 || used < 0.7 {
			t.Errorf("%d of 3000 refused, %.2f of the quota used", r.Refused, used)
		} else {
			t.Logf("%d of 3000 refused, %.2f of the quota used", r.Refused, used)
		}
	})
}

// A refusal out of a cache says nothing about the API. It does not hold the bucket, and it
// does not count as a success, after which a refusal would slow the clock.
func TestACachedRefusalIsNeitherARefusalNorASuccess(t *testing.T) {
	for _, watched := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			bucket := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 10, LeakRate: 10}))
			header := http.Header{"X-From-Cache": {"1"}}
			tr := &transport.Transport{Limiter: bucket, Base: answer(func() http.Header { return header })}
			if watched {
				tr.OnResponse = func(*http.Response, *outbound.Permit) {}
			}
			for _, h := range []http.Header{header, {"Retry-After": {"1"}}} {
				header = h
				req, err := http.NewRequest(http.MethodGet, "http://api.test/", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := tr.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				s, err := bucket.State(t.Context())
				if held := h.Get("Retry-After") != ""; err != nil || (s.HeldFor > 0) != held || s.Speed != 1 {
					t.Errorf("watched %v, after %v: held for %v at speed %v, %v", watched, h, s.HeldFor, s.Speed, err)
				}
			}
		})
	}
}

// answer is a base that answers 429 with these headers.
type answer func() http.Header

func (a answer) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusTooManyRequests, Header: a(), Body: http.NoBody, Request: req}, nil
}

// Discord tells with each answer what remains of a window of five calls. Places that were
// booked before the window's end do not count in the next one. A reset in 2 s or less holds
// nobody, so that window's end may bring a refusal. There is one: with a limit that is
// exactly the API's, two calls may meet there.
func TestAQueueUsesASmallWindowWhoseRestTheAPITells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := outboundtest.Discord()
		api.Latency = 50 * time.Millisecond
		bucket := outbound.Must(outbound.NewBucket("discord", outbound.Limit{Capacity: 5, LeakRate: 1}))
		client := &http.Client{Transport: &transport.Transport{Base: api, Limiter: queue.New(bucket, queue.Config{}), Profile: profile.Discord}}
		begin := time.Now()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for time.Since(begin) < 20*time.Minute {
					resp, err := client.Post("https://discord.com/api/channels/1/messages", "", nil)
					if err != nil {
						t.Error(err)
						return
					}
					resp.Body.Close()
				}
			})
		}
		wg.Wait()
		if r := api.Report(); r.Refused > 2 || r.Admitted < 1140 {
			t.Errorf("%d calls in 20 minutes, %d refused; want nearly 1200 and one or two", r.Arrivals, r.Refused)
		}
	})
}
