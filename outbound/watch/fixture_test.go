package watch

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// fake is a Board whose rows a test has written.
type fake struct {
	mu      sync.Mutex
	show    func(Query) Snapshot
	buckets map[[2]string]*outbound.Bucket // by name and label
	asked   []Query
}

func (f *fake) Snapshot(_ context.Context, q Query) Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, q)
	if f.show == nil {
		return Snapshot{}
	}
	return f.show(q)
}

func (f *fake) bucketOf(name, label string) *outbound.Bucket {
	return f.buckets[[2]string{name, label}]
}

func anybody(*http.Request, Action) error { return nil }

// allowed is what Allow is where everybody may act.
func allowed(f *fake) *server { return &server{source: f, allow: anybody} }

// hostileNames are what names, labels, limits and errors may be, all the same.
var hostileNames = []string{
	`<img src=x onerror="window.hit=1">`, `"><script>window.hit=1</script>`, `'`, "a\nb\r\tc\x00d", "\xff\xfe bytes \xc3", "\u202egnirts\u202c",
	"שלום עולם", "&amp;name=x&do=hold", "{{.}}${1}", strings.Repeat("long", 2_500), "__proto__", "constructor", "",
}

// hostileRow returns a row that says s wherever it says anything.
func hostileRow(s string) Limiter {
	return Limiter{
		Name: s, Label: s, Severity: Stopped, Trouble: []string{s, s}, Shared: true, AsOf: time.Now(), Err: s, Reason: s, HeldFor: time.Minute,
		Explain: &outbound.Explanation{Key: s, Cost: outbound.Cost{1}, Because: "never", Limit: s, Err: errors.New(s), States: []outbound.State{{Limit: outbound.Limit{Name: s}}}},
		Limits:  []Limit{{Name: s, Level: 1, Capacity: 2, Binding: true}, {Name: s, Unit: 3, Level: 1, Capacity: 2}},
		Calls:   Calls{Admitted: 1, Refused: 1, Failed: 1, ByLimit: map[string]uint64{s: 1}, ByError: map[string]uint64{s: 1}, Units: [len(outbound.Cost{})]float64{1, 1, 1, 1}},
		Budgets: []Budget{{Policy: s, Unit: s, Limit: 2, Remaining: 1}}, Refusals: map[string]uint64{s: 1}, Actions: []string{"resume", "hold"},
	}
}

// minuteOf returns a minute in which each second was as f says, the oldest 0.
func minuteOf(p50, p99 time.Duration, f func(i int) Second) *Minute {
	m := &Minute{P50: p50, P99: p99}
	for i := range 60 {
		m.Seconds = append(m.Seconds, f(i))
	}
	return m
}

// office returns what a Board of a busy program shows.
func office(now time.Time) Snapshot {
	ago := now.Add
	wave := func(low, high float64) func(int) Second {
		return func(i int) Second {
			return Second{Admitted: uint64(low + (high-low)*math.Abs(math.Sin(float64(i*i)/7)))}
		}
	}
	hold, both := []string{"hold"}, []string{"hold", "resume"}
	return Snapshot{
		At: now, Began: ago(-34 * time.Minute), Hidden: 12_337,
		Limiters: []Limiter{
			{
				Name: "shopify", Label: "snow-devil", Severity: Stopped, AsOf: now, HeldFor: 11_800 * time.Millisecond, Reason: "rate", Speed: 0.9, Actions: both,
				Trouble: []string{"No call goes for 12 s: the API has refused calls that came too fast.", "Calls go at 90 % of the speed, because the API has refused some."},
				Explain: &outbound.Explanation{Wait: 11_800 * time.Millisecond, Because: "hold", Refusals: 1, Cost: outbound.Cost{1}, States: make([]outbound.State, 1)},
				Limits:  []Limit{{Name: "leaky", Level: 39, Capacity: 40, LeakRate: 2, Binding: true, EmptyIn: 32 * time.Second}},
				Minute: minuteOf(0, 12*time.Millisecond, func(i int) Second {
					switch s := wave(1, 5)(i); {
					case i < 47:
						return s
					case i == 47:
						return Second{Admitted: 3, ByAPI: 1}
					}
					return Second{Refused: 4}
				}),
				Calls:    Calls{Admitted: 4_070, Refused: 51, ByLimit: map[string]uint64{"leaky": 51}, Units: [len(outbound.Cost{})]float64{4_070}, WaitTime: 9 * time.Second},
				Refusals: map[string]uint64{"rate": 3},
			},
			{
				Name: "payments", Severity: Stopped, Shared: true, AsOf: ago(-14 * time.Second), Speed: 1, Actions: hold, Waiting: 8, Oldest: 1_300 * time.Millisecond,
				Err: "explain: dial tcp 10.0.0.7:6379: connect: connection refused",
				Trouble: []string{"Its store does not answer (explain: dial tcp 10.0.0.7:6379: connect: connection refused); what is shown is 14 s old.",
					"8 calls wait in the queue, the first for 1.3 s.", "280 calls failed in the last minute, the latest because the store failed."},
				Explain: &outbound.Explanation{Wait: 1_500 * time.Millisecond, Because: "booked", Ahead: 8, Cost: outbound.Cost{1}, States: []outbound.State{{Wait: 160 * time.Millisecond}}},
				Limits:  []Limit{{Name: "100 per 1s", Used: 0, Of: 100, Window: time.Second, LeakRate: 100, Binding: true}},
				Minute: minuteOf(200*time.Millisecond, 1_400*time.Millisecond, func(i int) Second {
					if i < 45 {
						return Second{Admitted: uint64(58 + 9*(i%4))}
					}
					return Second{Failed: 20}
				}),
				Calls: Calls{Admitted: 131_204, Failed: 303, Cancelled: 12, ByError: map[string]uint64{"store": 303}, Units: [len(outbound.Cost{})]float64{131_204}, WaitTime: 2 * time.Hour},
				Late:  4,
			},
			{
				Name: "stripe", Severity: Slowed, AsOf: now, Speed: 0.56, Actions: both, Waiting: 3, Oldest: 120 * time.Millisecond, NextIn: 18 * time.Millisecond,
				Trouble: []string{"Calls go at 56 % of the speed, because the API has refused some.", "3 calls wait in the queue, the first for 120 ms."},
				Explain: &outbound.Explanation{Wait: 60 * time.Millisecond, Because: "booked", Ahead: 3, Cost: outbound.Cost{1}, States: []outbound.State{{Wait: 18 * time.Millisecond}}},
				Limits:  []Limit{{Name: "25 per 1s", Used: 14, Of: 25, Window: time.Second, Binding: true}},
				Minute: minuteOf(40*time.Millisecond, 310*time.Millisecond, func(i int) Second {
					s := Second{Admitted: uint64(25 - min(i/4, 11))}
					if i%11 == 3 && i < 45 {
						s.ByAPI = 2
					}
					return s
				}),
				Calls:    Calls{Admitted: 38_911, Cancelled: 2, Units: [len(outbound.Cost{})]float64{38_911}, WaitTime: 31 * time.Minute},
				Refusals: map[string]uint64{"rate": 3, "concurrency": 1},
			},
			{
				Name: "llm", Label: "batch", Severity: Busy, AsOf: now, Speed: 1, Actions: hold, Waiting: 16, Oldest: 6_400 * time.Millisecond, NextIn: 350 * time.Millisecond,
				Trouble: []string{"16 calls wait in the queue, the first for 6.4 s."},
				Explain: &outbound.Explanation{Wait: 6_700 * time.Millisecond, Because: "limit", Limit: "tokens", Ahead: 16, Booked: 6 * time.Second,
					Cost: outbound.Cost{1, 400}, States: []outbound.State{{}, {Wait: 445 * time.Millisecond}, {}}},
				Limits: []Limit{
					{Name: "requests", Level: 3.08, Capacity: 60, LeakRate: 8, EmptyIn: 385 * time.Millisecond},
					{Name: "tokens", Unit: 1, Level: 8_205, Capacity: 8_000, LeakRate: 1_366, Binding: true, EmptyIn: 6 * time.Second},
					{Name: "in progress", Level: 5, Capacity: 24, InFlight: true},
				},
				Minute: minuteOf(5_400*time.Millisecond, 6_400*time.Millisecond, wave(1, 5)),
				Calls:  Calls{Admitted: 6_115, Units: [len(outbound.Cost{})]float64{6_115, 2_791_300}, WaitTime: 9 * time.Hour},
			},
			{
				Name: "github", Label: "acme", AsOf: now, Speed: 1, Actions: hold,
				Explain: &outbound.Explanation{Cost: outbound.Cost{1}, States: make([]outbound.State, 2)},
				Limits: []Limit{
					{Name: "per second", Used: 11, Of: 12, Window: time.Second, Binding: true},
					{Name: "per hour", Level: 345.2, Capacity: 5_000, LeakRate: 5_000. / 3_600, EmptyIn: 248 * time.Second},
				},
				Minute:  minuteOf(0, 80*time.Millisecond, wave(6, 12)),
				Calls:   Calls{Admitted: 1_390, Units: [len(outbound.Cost{})]float64{1_390}},
				Budgets: []Budget{{Policy: "core", Limit: 5_000, Remaining: 4_205, ResetIn: 26 * time.Minute, ToldAgo: 300 * time.Millisecond, Others: 0.09}},
			},
			{
				Name: "tenants", Keys: 12_340, Calls: Calls{Admitted: 2_204_118, Refused: 1_204, ByLimit: map[string]uint64{"5 per 1s": 1_204}, Units: [len(outbound.Cost{})]float64{2_204_118}},
				Minute: minuteOf(0, time.Millisecond, wave(980, 1_150)),
			},
			{
				Name: "tenants", Label: "umbrella", Severity: Busy, AsOf: now, Speed: 1, Actions: hold, Explain: &outbound.Explanation{Wait: 170 * time.Millisecond, Because: "limit", Limit: "5 per 1s", Cost: outbound.Cost{1}, States: []outbound.State{{Wait: 170 * time.Millisecond}}},
				Limits: []Limit{{Name: "5 per 1s", Level: 1.84, Capacity: 1, LeakRate: 5, Binding: true, NextIn: 170 * time.Millisecond}},
			},
			{
				Name: "tenants", Label: "initech", AsOf: now, Speed: 1, Actions: hold, Explain: &outbound.Explanation{},
				Limits: []Limit{{Name: "5 per 1s", Level: 0.6, Capacity: 1, LeakRate: 5}},
			},
			{ // which is so calm that only those see it who look for it
				Name: "tenants", Label: "hooli", AsOf: now, Speed: 1, Actions: hold,
				Limits: []Limit{{Name: "5 per 1s", Level: 0.1, Capacity: 1, LeakRate: 5}},
			},
		},
		Stores: []Store{
			{
				Name: "redis", Away: true, AwayFor: 14 * time.Second, Err: "dial tcp 10.0.0.7:6379: connect: connection refused",
				Trouble: []string{"10.0.0.7:6379 has not answered for 14 s: dial tcp 10.0.0.7:6379: connect: connection refused."}, Trips: 91_044, Operations: 131_222, Repeats: 12, Remembered: 1_840, Failures: 19, MeanTrip: 640 * time.Microsecond,
			},
			{Name: "redis-eu", Fallback: true, Switched: 3, Trips: 4_102, Operations: 9_310, MeanTrip: 2 * time.Millisecond},
		},
		Events: []Event{
			{At: ago(-13 * time.Second), Name: "shopify snow-devil", Kind: "held", Words: "no call goes for 25 s (rate)"},
			{At: ago(-13 * time.Second), Name: "shopify snow-devil", Kind: "slowed", Words: "the API refuses calls: they go at 90 % of the speed"},
			{At: ago(-4 * time.Minute), Name: "stripe", Kind: "slowed", Words: "the API refuses calls: they go at 56 % of the speed", Times: 4},
			{At: ago(-26 * time.Hour), Name: "llm batch", Kind: "released", Words: "calls go again, after 2 min"},
		},
	}
}
