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
				operator     float64 // sets so many a minute; 0: nothing
				reported     []string
				minute, hour float64 // then in force
			}{
				{0, []string{m(300), m(400), m(300), tokens, tokens, m(600), m(600)}, 600, 5000},
				{0, []string{m(300), m(300)}, 300, 5000},
				{0, []string{both, both}, 300, 1000},
				{0, []string{m(450), m(450)}, 450, 1000},
				{0, []string{m(10_000), m(10_000), m(10_000)}, 600, 1000},
				{60, []string{m(300), m(300), m(600), m(600)}, 60, 1000},
				{0, []string{m(30), m(30)}, 30, 1000},
			} {
				if c.operator > 0 {
					limits := slices.Clone(b.Limits())
					limits[0] = outbound.PerMinute(c.operator)
					if err := b.SetLimits(t.Context(), limits...); err != nil {
						t.Fatal(err)
					}
				}
				for _, policies = range c.reported {
					trip(t, rt)
					time.Sleep(10 * time.Second)
				}
				want := []outbound.Limit{outbound.PerMinute(c.minute), outbound.Window(c.hour, time.Hour)}
				if got := b.Limits()[:2]; !slices.Equal(got, want) {
					t.Errorf("shared %v: after %q limits %v, want %v", shared, c.reported, got, want)
				}
			}
		})
	}
}
