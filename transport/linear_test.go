package transport_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// linear returns an API that speaks as Linear does: 100 requests and 1000 points of
// complexity in leaky buckets of an hour, and 5 searches in one of a minute. Each query costs
// the same points.
func linear(points float64) *outboundtest.API {
	search := func(r *http.Request) string {
		if r.URL.Path == "/search" {
			return "searchIssues"
		}
		return ""
	}
	return &outboundtest.API{
		Rules: []outboundtest.Rule{
			outboundtest.LeakyBucket(2500, 2500./3600).Of("Requests", nil),
			outboundtest.LeakyBucket(3e6, 3e6/3600).Of("Complexity", func(*http.Request) float64 { return points }),
			outboundtest.LeakyBucket(30, 30./60).Of("Endpoint-Requests", nil).By(search),
		},
		Latency: 50 * time.Millisecond, Skew: thisCentury,
		Vendor: func(w http.ResponseWriter, r *http.Request, d *outboundtest.Decision, next http.Handler) {
			h := w.Header()
			h.Set("X-Complexity", fmt.Sprint(points))
			for _, c := range d.Counts {
				h.Set("X-RateLimit-"+c.Unit+"-Limit", fmt.Sprint(int(c.Limit)))
				h.Set("X-RateLimit-"+c.Unit+"-Remaining", fmt.Sprint(int(c.Remaining)))
				h.Set("X-RateLimit-"+c.Unit+"-Reset", fmt.Sprint(d.At.Add(c.Reset).UnixMilli()))
				if c.Key != "" {
					h.Set("X-RateLimit-Endpoint-Name", c.Key)
				}
			}
			if !d.Refused {
				next.ServeHTTP(w, r)
				return
			}
			h.Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"errors":[{"message":"Rate limit exceeded","extensions":{"code":"RATELIMITED"}}]}`)
		},
	}
}

// Linear's buckets refill all the time. A call that took the last of one waits for nothing,
// and a refused call waits for what the next call needs, not until all is there again.
func TestLinearsBucketsAreNoWindows(t *testing.T) {
	for name, c := range map[string]struct {
		rate, points float64 // our rate per hour, and what each query costs
		has          float64 // queries per hour that the API allows
		used         float64 // part of these in the second hour
		refused      float64 // part of all calls
	}{
		"twice the right limit":  {rate: 5000, points: 2, has: 2500, used: 0.99, refused: 0.02},
		"not that of complexity": {rate: 2500, points: 2400, has: 1250, used: 0.99, refused: 0.04},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := linear(c.points)
				b := outbound.Must(outbound.NewBucket("linear", outbound.PerHour(c.rate)))
				rt := &transport.Transport{Base: api, Limiter: queue.New(b, queue.Config{}), Profile: profile.Linear}
				begin := time.Now()
				ctx, stop := context.WithTimeout(t.Context(), 2*time.Hour)
				defer stop()
				call(ctx, t, rt)
				used := admitted(api, begin.Add(time.Hour), time.Hour) / c.has
				r := api.Report()
				refused := float64(r.Refused) / float64(r.Arrivals)
				t.Logf("%.1f %% used, %.1f %% refused", 100*used, 100*refused)
				if used < c.used || refused > c.refused {
					t.Errorf("missed: %.0f %% used, %.0f %% refused", 100*c.used, 100*c.refused)
				}
			})
		})
	}
}

// The limit of one query is not the account's.
func TestARefusalOfOneOfLinearsQueriesSlowsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := linear(1)
		b := outbound.Must(outbound.NewBucket("linear", outbound.Limit{Capacity: 100, LeakRate: 100. / 3600}))
		rt := &transport.Transport{Base: api, Limiter: b, Profile: profile.Linear}
		for range 33 {
			req, err := http.NewRequest(http.MethodPost, "https://api.test/search", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := rt.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
		}
		s, err := b.State(t.Context())
		if err != nil || s.HeldFor > 0 || s.Speed != 1 || api.Report().Refused != 3 {
			t.Errorf("held for %v at speed %v, %d refused, %v; want no hold, full speed, 3 refused", s.HeldFor, s.Speed, api.Report().Refused, err)
		}
	})
}
