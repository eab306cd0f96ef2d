package transport_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// In these simulations a fleet of processes shares one bucket through a store at a distance, and
// calls an API as fast as it may, on the fake clock of a synctest bubble.

const (
	processes    = 20
	storeLatency = 2 * time.Millisecond
	clockAge     = 25 * time.Millisecond // how old the store's last reply may be when a call leaves
)

// episode is a refusal that counted: when the store kept the hold, and how long it was.
type episode struct {
	stored time.Time
	hold   time.Duration
}

// distant is a store in which every request takes storeLatency. It records the episodes.
type distant struct {
	store.Store

	mu       sync.Mutex // protects what follows
	known    bool
	epoch    int64
	episodes []episode
}

func (d *distant) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	time.Sleep(storeLatency / 2)
	when := time.Now()
	r, err := d.Store.Update(ctx, key, op)
	r.When, r.Received = when, when.Add(storeLatency/2)
	d.note(&r, when)
	time.Sleep(storeLatency / 2)
	return r, err
}

func (d *distant) note(r *store.Reply, when time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.known {
		d.known, d.epoch = true, r.State.Epoch
	} else if r.State.Epoch > d.epoch {
		d.episodes = append(d.episodes, episode{when, r.State.Rem})
	} else if n := len(d.episodes); n > 0 && r.State.Rem > 0 {
		e := &d.episodes[n-1]
		e.hold = max(e.hold, when.Sub(e.stored)+r.State.Rem) // of the same episode, which may extend it
	}
	d.epoch = max(d.epoch, r.State.Epoch)
}

// fleet is one simulation. It is the base of all its processes.
type fleet struct {
	limit   outbound.Limit
	api     http.RoundTripper
	profile *profile.Profile
	maxHold time.Duration

	store   *distant
	stop    context.CancelFunc // ends the run before its time
	mu      sync.Mutex         // protects what follows
	calls   []time.Time
	refused []time.Time // when these calls had left
}

// run lets the processes call until the time is up. during runs at the same time.
func (f *fleet) run(t *testing.T, length time.Duration, during func(b *outbound.Bucket)) {
	t.Helper()
	f.store = &distant{Store: store.NewMemory()}
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	f.stop = stop
	var all sync.WaitGroup
	var b *outbound.Bucket
	for range processes {
		b = outbound.Must(outbound.NewSharedBucket(f.store, "api", f.limit))
		rt := &transport.Transport{Base: f, Limiter: queue.New(b, queue.Config{}), Profile: f.profile, MaxHold: f.maxHold}
		for range 2 {
			all.Go(func() { call(ctx, rt) })
		}
	}
	if during != nil {
		during(b)
	}
	all.Wait()
	time.Sleep(time.Second) // for the queues' last requests to the store
}

// RoundTrip records the calls that leave.
func (f *fleet) RoundTrip(req *http.Request) (*http.Response, error) {
	left := time.Now()
	resp, err := f.api.RoundTrip(req)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, left)
	if err == nil && resp.StatusCode == http.StatusTooManyRequests {
		f.refused = append(f.refused, left)
	}
	return resp, err
}

// call makes one call after the other until ctx ends.
func call(ctx context.Context, rt http.RoundTripper) {
	for ctx.Err() == nil {
		if _, err := getURL(ctx, rt, "https://api.test/v1/items"); err != nil {
			return // the time is up
		}
	}
}

// refusals returns how many calls have left, which share of them the API refused, in how many
// episodes, the most refusals of one episode, and by how much the latest call that left into a hold
// came after the store kept that hold.
func (f *fleet) refusals() (calls int, share float64, episodes, most int, latest time.Duration) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	var before time.Time // the end of the last hold
	for _, e := range f.store.episodes {
		n := 0
		for _, left := range f.refused {
			if !left.Before(before) && left.Before(e.stored.Add(e.hold)) {
				n++
				latest = max(latest, left.Sub(e.stored))
			}
		}
		most, before = max(most, n), e.stored.Add(e.hold)
	}
	return len(f.calls), float64(len(f.refused)) / float64(len(f.calls)), len(f.store.episodes), most, latest
}

// sampled leaves some simulations out where they take too long.
func sampled(t *testing.T) {
	t.Helper()
	if raced || testing.Short() {
		t.Skip("a long simulation")
	}
}

// admitted returns how many calls the API has admitted from a time on, for so long.
func admitted(api *outboundtest.API, from time.Time, length time.Duration) float64 {
	n := 0.0
	for at, units := range api.Admitted().All() {
		if !at.Before(from) && at.Before(from.Add(length)) {
			n += units
		}
	}
	return n
}

// away puts an API at a distance. Its clock is ahead of a bubble's, which begins in the year 2000:
// profiles take a number for the time since 1970 from 2001 on.
func away(api *outboundtest.API) *outboundtest.API {
	api.Latency, api.Jitter, api.Skew = 50*time.Millisecond, 150*time.Millisecond, thisCentury
	return api
}

const thisCentury = 26 * 365 * 24 * time.Hour

// The API allows half of the configured limits, and says how long to wait.
func TestFleet_FindsLimitByRefusalsWithATime(t *testing.T) {
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
				api := away(&outboundtest.API{Rules: []outboundtest.Rule{c.rule}})
				f := &fleet{limit: c.limit, api: api}
				f.run(t, length, nil)
				after := length - time.Minute
				use := admitted(api, begin.Add(time.Minute), after) / (c.rate * after.Seconds())
				allowed := 2 + (c.limit.LeakRate-c.rate)*(api.Latency+api.Jitter+storeLatency+clockAge).Seconds()
				calls, share, episodes, most, latest := f.refusals()
				t.Logf("%d calls, %.2f %% refused in %d episodes of at most %d (allowed %.1f), the latest %v after the hold; %.1f %% of the real quota",
					calls, 100*share, episodes, most, allowed, latest, 100*use)
				// Until 16 refusals have come, the speed falls to no less than half, which is just
				// what this API allows. At few calls a second that takes a while.
				errorIf(t, float64(most) > allowed || latest > storeLatency+clockAge || share >= 0.012 || use < c.use,
					"missed: at most %.1f refusals in an episode, none later than %v, below 1.2 %%, and %.0f %% used", allowed, storeLatency+clockAge, 100*c.use)
			})
		})
	}
}

// The API does not say how long to wait. Then it doubles its limit.
func TestFleet_FindsLimitByRefusalsAlone(t *testing.T) {
	const before, after = 15 * time.Minute, 9 * time.Minute
	for name, rate := range map[string]float64{"1 call per second": 1, "5 calls per second": 5} {
		t.Run(name, func(t *testing.T) {
			if rate != 1 {
				sampled(t)
			}
			synctest.Test(t, func(t *testing.T) {
				api := away(outboundtest.Stripe(outboundtest.SlidingLog(rate, time.Second)))
				f := &fleet{limit: outbound.PerSecond(2 * rate), api: api, profile: profile.Stripe}
				begin := time.Now()
				f.run(t, before+after, func(*outbound.Bucket) {
					time.Sleep(before)
					use := admitted(api, begin.Add(time.Minute), before-time.Minute) / (rate * (before - time.Minute).Seconds())
					calls, share, episodes, most, latest := f.refusals()
					t.Logf("%d calls, %.2f %% refused in %d episodes of at most %d, the latest %v after the hold; %.1f %% of the real quota",
						calls, 100*share, episodes, most, latest, 100*use)
					errorIf(t, share >= 0.035 || use < 0.85, "missed: below 3.5 %% refused and 85 %% used")
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
				errorIf(t, back > 8*time.Minute, "missed: within 8 minutes")
			})
		})
	}
}

// GitHub frees the whole quota an hour after the first call.
func TestFleet_UsesHourlyQuotaWithoutRefusal(t *testing.T) {
	sampled(t)
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		api := away(outboundtest.GitHub())
		f := &fleet{limit: outbound.PerHour(5000), api: api, profile: profile.GitHub}
		f.run(t, 2*time.Hour+time.Second, nil)
		refused := api.Report().Refused
		for hour := range 2 {
			used := admitted(api, begin.Add(time.Duration(hour)*time.Hour), time.Hour)
			t.Logf("hour %d: %.0f of 5000 calls, %d refused in all", hour+1, used, refused)
			errorIf(t, used < 0.99*5000 || refused > 0, "missed: 4950 calls, none refused")
		}
	})
}

// Other programs use the same quota up. The API reports what remains, and has to refuse no call.
func TestFleet_StopsWhenOthersHaveUsedTheQuota(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		api := away(outboundtest.GitHub(outboundtest.FirstCallWindow(5000, time.Hour).Of("core", nil)))
		f := &fleet{limit: outbound.PerHour(5000), api: api, profile: profile.GitHub}
		f.run(t, time.Hour+10*time.Minute, func(*outbound.Bucket) {
			time.Sleep(time.Minute)
			for range 2000 {
				go func() { _ = fetch(t, api, "https://api.test/others") }()
			}
		})
		refused := api.Report().Refused
		later := admitted(api, begin.Add(time.Hour), 10*time.Minute)
		t.Logf("%d refused; in ten minutes after the reset %.0f calls", refused, later)
		errorIf(t, refused > 0 || later < 0.98*5000/6-5, "missed: none refused, and the full rate after the reset")
	})
}

// An API that refuses everything gets one call per MaxHold. When it admits calls again, the full
// rate is back soon after that, or within a second after Resume.
func TestFleet_AsksRefusingAPIOncePerMaxHold(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	const calm, storm = 10 * time.Minute, 3 * time.Hour
	for name, c := range map[string]struct {
		after   string // the API's Retry-After
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
				var refuses atomic.Bool
				calls := away(&outboundtest.API{})
				f := &fleet{limit: outbound.PerSecond(2), maxHold: c.maxHold, api: roundTripper(func(req *http.Request) (*http.Response, error) {
					resp, err := calls.RoundTrip(req)
					if err == nil && refuses.Load() {
						resp.StatusCode = http.StatusTooManyRequests
						resp.Header.Set("Retry-After", c.after)
					}
					return resp, err
				})}
				begin := time.Now()
				since := func(at time.Time) time.Duration { return at.Sub(begin) - calm - storm } // since the end of the storm
				// back returns when the first call left after the storm, and when the first full minute
				// began.
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
					refuses.Store(true)
					time.Sleep(storm)
					refuses.Store(false)
					if c.resume {
						check(t, b.Resume(t.Context()))
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
					most = 2 * time.Second // a reservation of the hold's last second still counts
				}
				errorIf(t, worst > 2 || full > most,
					"missed: 1 call per MaxHold and one in flight, the full rate within %v", most)
			})
		})
	}
}
