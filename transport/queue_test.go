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
