package transport_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// stamps makes an API tell what remains of the first rule until a reset, on refusals as well:
// in whole seconds from now, rounded up, or as a point in time.
func stamps(reset string) outboundtest.Vendor {
	return func(w http.ResponseWriter, r *http.Request, d *outboundtest.Decision, next http.Handler) {
		c := &d.Counts[0]
		left := int64(math.Ceil(c.Reset.Seconds()))
		switch reset {
		case "none":
		case "epoch":
			left = int64(math.Ceil(float64(d.At.Add(c.Reset).UnixNano()) / 1e9))
			fallthrough
		default:
			w.Header().Set("X-RateLimit-Limit", strconv.Itoa(int(c.Limit)))
			w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(int(c.Remaining)))
			w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(left, 10))
		}
		next.ServeHTTP(w, r)
	}
}

// windowed calls an API of n calls per window as fast as a limit allows. It returns which
// part of the API's limit the calls used from a time on, and which part of the calls the API
// refused.
func windowed(t *testing.T, limit outbound.Limit, n float64, window time.Duration, reset string, warm, length time.Duration) (used, refused float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.FixedWindow(n, window)}, Latency: 30 * time.Millisecond, Skew: thisCentury, Vendor: stamps(reset)}
		rt := &transport.Transport{Base: api, Limiter: queue.New(outbound.Must(outbound.NewBucket("api", limit)), queue.Config{})}
		begin := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), warm+length)
		defer stop()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { call(ctx, t, rt) })
		}
		all.Wait()
		used = admitted(api, begin.Add(warm), length) / (n * length.Seconds() / window.Seconds())
		r := api.Report()
		refused = float64(r.Refused) / float64(r.Arrivals)
	})
	return used, refused
}

// A program that keeps the API's limit sees only just before the reset that nothing remains.
// A hold until then, in whole seconds, would cost a short window its beginning.
func TestARightLimitLosesNothingByTheRestThatTheAPITells(t *testing.T) {
	for _, c := range []struct {
		n      float64
		window time.Duration
	}{{5, time.Second}, {50, time.Second}, {40, 2 * time.Second}, {50, 10 * time.Second}, {500, 10 * time.Second}, {600, time.Minute}} {
		t.Run(fmt.Sprintf("%v per %v", c.n, c.window), func(t *testing.T) {
			limit, length := outbound.Per(c.n, c.window), max(20*time.Second, 2*c.window)
			without, _ := windowed(t, limit, c.n, c.window, "none", 0, length)
			for _, reset := range []string{"delta", "epoch"} {
				used, refused := windowed(t, limit, c.n, c.window, reset, 0, length)
				t.Logf("%s: %.1f %% used, %.1f without headers, %.2f refused", reset, 100*used, 100*without, 100*refused)
				if used < 0.94 || used < without-0.01 || refused > 0.001 {
					t.Errorf("%s: missed: 94 %% used, 1 point less than without headers, none refused", reset)
				}
			}
		})
	}
}

// If our limit is twice the API's, refusals do in short windows what the hold does in long
// ones.
func TestTheRestAndRefusalsFindALimitOfShortWindows(t *testing.T) {
	sampled(t)
	for i, c := range []struct {
		n      float64
		window time.Duration
		used   float64
	}{{5, time.Second, 0.93}, {50, time.Second, 0.92}, {40, 2 * time.Second, 0.92}, {50, 10 * time.Second, 0.98}, {500, 10 * time.Second, 0.93}, {600, time.Minute, 0.98}} {
		t.Run(fmt.Sprintf("%v per %v", c.n, c.window), func(t *testing.T) {
			// Until 16 refusals have come, the clock slows down to no less than half, which
			// is just what this API allows.
			const warm = 6 * time.Minute
			length := 4 * time.Minute
			if c.n/c.window.Seconds() < 10 { // one refusal counts for more
				length = 10 * time.Minute
			}
			resets := []string{"delta", "epoch"}
			if os.Getenv("DRIPFEED_LONG") == "" {
				resets = resets[i%2:][:1]
			}
			for _, reset := range resets {
				used, refused := windowed(t, outbound.Per(2*c.n, c.window), c.n, c.window, reset, warm, length)
				t.Logf("%s: %.1f %% used, %.2f refused", reset, 100*used, 100*refused)
				if used < c.used || refused > 0.007 {
					t.Errorf("%s: missed: %.0f %% used, 0.7 refused", reset, 100*c.used)
				}
			}
		})
	}
}
