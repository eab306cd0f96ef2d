package transport_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// thisCentury is how far the API's clock is ahead of a bubble's, which begins in the year
// 2000: profiles take a number for the time since 1970 from 2001 on.
const thisCentury = 26 * 365 * 24 * time.Hour

// GitHub's quota comes back as a whole, an hour after the first call.
func TestAFleetUsesAnHourlyQuotaWithoutARefusal(t *testing.T) {
	sampled(t)
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		api := outboundtest.GitHub()
		api.Latency, api.Jitter = 50*time.Millisecond, 150*time.Millisecond
		api.Skew = thisCentury
		f := &fleet{limit: outbound.PerHour(5000), api: api, profile: profile.GitHub}
		f.run(t, 2*time.Hour+time.Second, nil)
		refused := api.Report().Refused
		for hour := range 2 {
			used := admitted(api, begin.Add(time.Duration(hour)*time.Hour), time.Hour)
			t.Logf("hour %d: %.0f of 5000 calls, %d refused in all", hour+1, used, refused)
			if used < 0.99*5000 || refused > 0 {
				t.Error("missed: 4950 calls, none refused")
			}
		}
	})
}

// Others use the same quota up. The API tells what remains, and has to refuse nobody.
func TestAFleetStopsUntilTheResetWhenOthersHaveUsedTheQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		api := outboundtest.GitHub(outboundtest.FirstCallWindow(5000, time.Hour).Of("core", nil))
		api.Latency, api.Jitter = 50*time.Millisecond, 150*time.Millisecond
		api.Skew = thisCentury
		f := &fleet{limit: outbound.PerHour(5000), api: api, profile: profile.GitHub}
		f.run(t, time.Hour+10*time.Minute, func(*outbound.Bucket) {
			time.Sleep(time.Minute)
			for range 2000 {
				req, _ := http.NewRequest(http.MethodGet, "https://api.test/others", nil)
				go func() { _, _ = api.RoundTrip(req) }()
			}
		})
		refused := api.Report().Refused
		later := admitted(api, begin.Add(time.Hour), 10*time.Minute)
		t.Logf("%d refused; in ten minutes after the reset %.0f calls", refused, later)
		if refused > 0 || later < 0.98*5000/6-5 {
			t.Error("missed: none refused, and the full rate after the reset")
		}
	})
}

// moody is an API that refuses everything while it is angry.
type moody struct {
	outboundtest.API
	angry atomic.Bool
	after string // its Retry-After; "": none
}

func (m *moody) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := m.API.RoundTrip(req)
	if err == nil && m.angry.Load() {
		resp.StatusCode = http.StatusTooManyRequests
		if m.after != "" {
			resp.Header.Set("Retry-After", m.after)
		}
	}
	return resp, err
}

func TestAnAPIThatRefusesForEverIsAskedOncePerMaxHold(t *testing.T) {
	const calm, storm = 10 * time.Minute, 3 * time.Hour
	for name, c := range map[string]struct {
		after   string
		resume  bool
		maxHold time.Duration
	}{
		"no hint":                             {"", false, time.Hour},
		"no hint, then Resume":                {"", true, time.Hour},
		"no hint, a MaxHold of a minute":      {"", false, time.Minute},
		"Retry-After of 1e10":                 {"10000000000", false, time.Hour},
		"Retry-After of 1e10, and Resume":     {"10000000000", true, time.Hour},
		"Retry-After of 1e10, MaxHold of 5 s": {"10000000000", false, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if c.after == "" {
				sampled(t)
			}
			synctest.Test(t, func(t *testing.T) {
				after := c.maxHold + 20*time.Minute
				api := &moody{after: c.after}
				api.Latency, api.Jitter = 50*time.Millisecond, 150*time.Millisecond
				f := &fleet{limit: outbound.PerSecond(2), api: api, maxHold: c.maxHold}
				begin := time.Now()
				since := func(at time.Time) time.Duration { return at.Sub(begin) - calm - storm } // since the end of the storm
				// back returns when the first call left after the storm, and when the first
				// full minute began.
				back := func() (first, full time.Duration) {
					f.mu.Lock()
					defer f.mu.Unlock()
					first, full = after, after
					for i, at := range f.calls {
						if since(at) < 0 {
							continue
						}
						first = min(first, since(at))
						if n := 60 * 2 * 98 / 100; i+n < len(f.calls) && f.calls[i+n].Sub(at) <= time.Minute {
							full = min(full, since(at))
						}
					}
					return first, full
				}
				f.run(t, calm+storm+after, func(b *outbound.Bucket) {
					time.Sleep(calm)
					api.angry.Store(true)
					time.Sleep(storm)
					api.angry.Store(false)
					if c.resume {
						if err := b.Resume(t.Context()); err != nil {
							t.Error(err)
						}
					}
					for _, full := back(); full == after && since(time.Now()) < after; _, full = back() {
						time.Sleep(10 * time.Second)
					}
					f.stop() // what follows is as before the storm
				})
				departed := new(outboundtest.History)
				for _, at := range f.calls {
					if since(at) > 2*time.Hour-storm && since(at) < 0 {
						departed.Add(at, 1)
					}
				}
				first, full := back()
				worst := departed.Worst(c.maxHold - c.maxHold/50).Departures
				t.Logf("at most %d calls within a MaxHold, %d refusals; then the first call after %v, the full rate after %v", worst, len(f.refused), first, full)
				most := c.maxHold + 10*time.Minute
				if c.resume {
					most = time.Second
				}
				if worst > 2 || full > most {
					t.Errorf("missed: 1 call per MaxHold and one in flight, the full rate within %v", most)
				}
			})
		})
	}
}
