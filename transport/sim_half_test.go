package transport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// The API allows half of the configured limits, and says how long to wait.
func TestAFleetFindsTheRealLimitByRefusalsThatTellTheTime(t *testing.T) {
	const length = 21 * time.Minute
	for _, c := range []struct {
		name  string
		rule  outboundtest.Rule
		limit outbound.Limit
		rate  float64 // of the real limit, per second
		use   float64
	}{
		{"leaky bucket of 20", outboundtest.LeakyBucket(20, 5), outbound.Limit{Capacity: 20, LeakRate: 10}, 5, 0.95},
		{"leaky bucket of 40", outboundtest.LeakyBucket(40, 2), outbound.Limit{Capacity: 40, LeakRate: 4}, 2, 0.95},
		{"window of 60 s", outboundtest.FixedWindow(300, time.Minute), outbound.PerMinute(600), 5, 0.95},
		{"window of 10 s", outboundtest.FixedWindow(50, 10*time.Second), outbound.Per(100, 10*time.Second), 5, 0.90},
		{"window from the first call", outboundtest.FirstCallWindow(300, time.Minute), outbound.PerMinute(600), 5, 0.95},
		{"log of 60 s", outboundtest.SlidingLog(300, time.Minute), outbound.PerMinute(600), 5, 0.90},
		{"log of 10 s", outboundtest.SlidingLog(50, 10*time.Second), outbound.Per(100, 10*time.Second), 5, 0.90},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.rate != 2 {
				sampled(t)
			}
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				api := &outboundtest.API{Rules: []outboundtest.Rule{c.rule}, Latency: 50 * time.Millisecond, Jitter: 150 * time.Millisecond}
				f := &fleet{limit: c.limit, api: api}
				f.run(t, length, nil)
				after := length - time.Minute
				use := admitted(api, begin.Add(time.Minute), after) / (c.rate * after.Seconds())
				calls, refused, episodes := f.counts()
				share := float64(refused) / float64(calls)
				excess := c.limit.LeakRate - c.rate
				allowed := 2 + excess*(api.Latency+api.Jitter+storeTrip+deafness).Seconds()
				most, latest := f.perEpisode()
				t.Logf("%d calls, %.2f %% refused in %d episodes of at most %d (allowed %.1f), the latest %v after the hold; %.1f %% of the real quota",
					calls, 100*share, episodes, most, allowed, latest, 100*use)
				// Until 16 refusals have come, the clock slows down to no less than half,
				// which is just what this API allows. At few calls a second that takes a
				// while.
				if float64(most) > allowed || latest > storeTrip+deafness || share >= 0.012 || use < c.use {
					t.Errorf("missed: at most %.1f refusals in an episode, none later than %v, below 1.2 %%, and %.0f %% used", allowed, storeTrip+deafness, 100*c.use)
				}
			})
		})
	}
}

// The API does not say how long to wait. Then it doubles its limit.
func TestAFleetFindsTheRealLimitByRefusalsAlone(t *testing.T) {
	const before, after = 15 * time.Minute, 9 * time.Minute
	for name, rate := range map[string]float64{"1 call per second": 1, "5 calls per second": 5} {
		t.Run(name, func(t *testing.T) {
			if rate != 1 {
				sampled(t)
			}
			synctest.Test(t, func(t *testing.T) {
				api := outboundtest.Stripe(outboundtest.SlidingLog(rate, time.Second))
				api.Latency, api.Jitter = 50*time.Millisecond, 150*time.Millisecond
				f := &fleet{limit: outbound.PerSecond(2 * rate), api: api, profile: profile.Stripe}
				begin := time.Now()
				f.run(t, before+after, func(*outbound.Bucket) {
					time.Sleep(before)
					use := admitted(api, begin.Add(time.Minute), before-time.Minute) / (rate * (before - time.Minute).Seconds())
					calls, refused, episodes := f.counts()
					share := float64(refused) / float64(calls)
					most, latest := f.perEpisode()
					t.Logf("%d calls, %.2f %% refused in %d episodes of at most %d, the latest %v after the hold; %.1f %% of the real quota",
						calls, 100*share, episodes, most, latest, 100*use)
					if share >= 0.035 || use < 0.85 {
						t.Errorf("missed: below 3.5 %% refused and 85 %% used")
					}
					api.SetRules(outboundtest.SlidingLog(2*rate, time.Second))
				})
				back := after
				for from := time.Duration(0); from < after; from += 10 * time.Second {
					if admitted(api, begin.Add(before+from), time.Minute) >= 0.85*2*rate*60 {
						back = from + time.Minute
						break
					}
				}
				t.Logf("of twice the limit 85 %% are used after %v", back)
				if back > 8*time.Minute {
					t.Error("missed: within 8 minutes")
				}
			})
		})
	}
}
