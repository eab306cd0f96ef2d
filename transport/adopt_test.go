package transport_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/transport"
)

// Adopt takes a lower number of the API for the same window once two responses agree, follows it up
// to the program's own number, and leaves alone what an operator has set lower.
func TestAdopt(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			policies := ""
			api := roundTripper(func(*http.Request) (*http.Response, error) {
				resp := status(200)
				resp.Header.Set("Ratelimit-Policy", policies)
				return resp, nil
			})
			own := []outbound.Limit{outbound.PerMinute(600), outbound.Window(5000, time.Hour), outbound.InFlight(5)}
			bucket := outbound.Must(outbound.NewBucket("api", own...))
			if shared {
				bucket = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "api", own[:2]...))
			}
			rt := &transport.Transport{Limiter: bucket, Base: api, OnSignal: transport.Adopt(bucket)}
			answers := func(reported ...string) {
				for _, policies = range reported {
					fetch(t, rt, "/")
					time.Sleep(10 * time.Second)
				}
			}
			inForce := func(minute, hour float64) {
				t.Helper()
				limits := bucket.Limits()
				want := []outbound.Limit{outbound.PerMinute(minute), outbound.Window(hour, time.Hour)}
				if fmt.Sprint(limits[:2]) != fmt.Sprint(want) {
					t.Errorf("limits %v, want %v", limits, want)
				}
			}
			const minute, hour, tokens = `"m";q=%d;w=60`, `"h";q=%d;w=3600`, `"t";q=1;w=60;qu="tokens"`
			m := func(n int) string { return fmt.Sprintf(minute, n) }

			answers(m(300), m(400), m(300), tokens, tokens, m(600), m(600))
			inForce(600, 5000)
			answers(m(300), m(300))
			inForce(300, 5000)
			answers(fmt.Sprintf(minute+", "+hour, 300, 1000), fmt.Sprintf(minute+", "+hour, 300, 1000))
			inForce(300, 1000)
			answers(m(450), m(450))
			inForce(450, 1000)
			answers(m(10_000), m(10_000), m(10_000))
			inForce(600, 1000)
			limits := slices.Clone(bucket.Limits())
			limits[0] = outbound.PerMinute(60)
			if err := bucket.SetLimits(context.Background(), limits...); err != nil {
				t.Fatal(err)
			}
			answers(m(300), m(300), m(600), m(600))
			inForce(60, 1000)
			answers(m(30), m(30))
			inForce(30, 1000)
		})
	}
}
