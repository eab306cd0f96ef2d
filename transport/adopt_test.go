package transport_test

import (
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
func TestAdopt_FollowsTheAPI(t *testing.T) {
	own := []outbound.Limit{outbound.PerMinute(600), outbound.Window(5000, time.Hour), outbound.InFlight(5)}
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(own...)
			if shared {
				b = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "api", own[:2]...))
			}
			policies := ""
			rt := &transport.Transport{Limiter: b, OnSignal: transport.Adopt(b), Base: roundTripper(func(req *http.Request) (*http.Response, error) {
				return answer(200, nil, "Ratelimit-Policy", policies)(req)
			})}
			const minute, hour, tokens = `"m";q=%d;w=60`, `"h";q=%d;w=3600`, `"t";q=1;w=60;qu="tokens"`
			m := func(n int) string { return fmt.Sprintf(minute, n) }
			both := fmt.Sprintf(minute+", "+hour, 300, 1000)
			for _, c := range []struct {
				operator     outbound.Limit // sets this limit first, if it is not zero
				reported     []string
				minute, hour float64 // then in force
			}{
				{outbound.Limit{}, []string{m(300), m(400), m(300), tokens, tokens}, 600, 5000},
				{outbound.Limit{}, []string{m(600), m(600)}, 600, 5000},
				{outbound.Limit{}, []string{m(300), m(300)}, 300, 5000},
				{outbound.Limit{}, []string{both, both}, 300, 1000},
				{outbound.Limit{}, []string{m(450), m(450)}, 450, 1000},
				{outbound.Limit{}, []string{m(10_000), m(10_000), m(10_000)}, 600, 1000},
				{outbound.PerMinute(60), []string{m(300), m(300), m(600), m(600)}, 60, 1000},
				{outbound.Limit{}, []string{m(30), m(30)}, 30, 1000},
				{outbound.PerSecond(100), []string{m(20), m(20)}, 0, 1000}, // another window: it stays
			} {
				if c.operator != (outbound.Limit{}) {
					limits := slices.Clone(b.Limits())
					limits[0] = c.operator
					check(t, b.SetLimits(t.Context(), limits...))
				}
				for _, policies = range c.reported {
					trip(t, rt)
					time.Sleep(10 * time.Second)
				}
				want := []outbound.Limit{c.operator, outbound.Window(c.hour, time.Hour)}
				if c.minute > 0 {
					want[0] = outbound.PerMinute(c.minute)
				}
				if got := b.Limits()[:2]; !slices.Equal(got, want) {
					t.Errorf("shared %v: after %q limits %v, want %v", shared, c.reported, got, want)
				}
			}
		})
	}
}
