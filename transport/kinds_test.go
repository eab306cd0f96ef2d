package transport_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// untilAllIsFree answers as an API whose reset is when all of its bucket is free again. Its refusals
// report the same, and no Retry-After.
func untilAllIsFree(w http.ResponseWriter, r *http.Request, d *outboundtest.Decision, next http.Handler) {
	c, h := d.Counts[0], w.Header()
	h.Set("RateLimit-Limit", fmt.Sprint(c.Limit))
	h.Set("RateLimit-Remaining", fmt.Sprint(int(c.Remaining)))
	h.Set("RateLimit-Reset", fmt.Sprint(d.At.Add(c.Reset).Unix()))
	if d.Refused {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	next.ServeHTTP(w, r)
}

// A bucket whose reset is when all is free again is used to the full, although another program has
// used it up: github.com/hetznercloud/hcloud-go/issues/79, docs.hetzner.cloud, "Rate Limiting".
func TestKinds_ResetOfAllHoldsForOneUnit(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	hetzner, _ := profile.ByName("hetzner")
	mine := &profile.Profile{Name: "mine", Kind: profile.Bucket}
	for name, c := range map[string]struct {
		profile          *profile.Profile
		size, rate, used float64
		want             int
	}{
		"generic":               {nil, 3600, 1, 3600, 7200},
		"hetzner":               {hetzner, 3600, 1, 3600, 7200},
		"another rate, by name": {mine, 100, 0.5, 100, 3600},
		"found out":             {nil, 100, 0.5, 60, 3600},
	} {
		bubble(t, name, func(t *testing.T) {
			time.Sleep(time.Until(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
			api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.LeakyBucket(c.size, c.rate)}, Vendor: untilAllIsFree}
			for range int(c.used) { // by another program
				trip(t, api)
			}
			limit := outbound.Limit{Capacity: c.size, LeakRate: c.rate}
			q := queue.New(outbound.Must(outbound.NewBucket("bucket", limit)), queue.Config{})
			client := &http.Client{Transport: &transport.Transport{Limiter: q, Base: api, Profile: c.profile}}
			for begin := time.Now(); time.Since(begin) < 2*time.Hour; {
				if resp, err := client.Get("http://api.test/"); err == nil {
					resp.Body.Close()
				}
			}
			r := api.Report()
			answered := r.Admitted - int(c.used)
			errorIf(t, answered < c.want*95/100 || r.Refused > 60, "%d answered, %d refused, want %d", answered, r.Refused, c.want)
		})
	}
}

// Only a bucket is taken for one: in a window more remains after the reset only.
func TestKinds_WindowStaysAWindow(t *testing.T) {
	for name, c := range map[string]struct {
		remaining, reset, after int // after the first response, which has 10 left and a reset in 100 s
		want                    profile.Kind
	}{
		"a bucket":                   {20, 89, 10, profile.Bucket},
		"a window goes on":           {9, 90, 10, profile.Window},
		"a window begins anew":       {99, 100, 100, profile.Window},
		"another server of a window": {50, 90, 10, profile.Window},
		"an older response":          {20, 89, 0, profile.Window},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
			remaining, reset, after := 10, 100, 0
			var kind profile.Kind
			rt := &transport.Transport{OnSignal: func(_ *http.Response, s *profile.Signal) { kind = s.Policies()[0].Kind },
				Base: roundTripper(func(req *http.Request) (*http.Response, error) {
					return answer(200, http.NoBody, "Date", begin.Add(time.Duration(after)*time.Second).Format(http.TimeFormat), "X-RateLimit-Limit", "100",
						"X-RateLimit-Remaining", fmt.Sprint(remaining), "X-RateLimit-Reset", fmt.Sprint(reset))(req)
				})}
			for range 2 {
				trip(t, rt)
				remaining, reset, after = c.remaining, c.reset, c.after
			}
			errorIf(t, kind != c.want, "kind %v, want %v", kind, c.want)
		})
	}
}
