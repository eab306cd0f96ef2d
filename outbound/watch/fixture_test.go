package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/ledger"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

var bg = context.Background()

// must returns v. An error, which no test expects, ends the tests with a panic that says it.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// check ends the test if there is an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// fatalIf reports a fault, and ends the test.
func fatalIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// equal reports the value that the words name if it is another than want.
func equal[T comparable](t testing.TB, got, want T, words string, args ...any) {
	if got != want {
		t.Helper()
		t.Errorf("%s: %v, want %v", fmt.Sprintf(words, args...), got, want)
	}
}

func bucket(t testing.TB, limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewBucket("secret-key", limits...))
}

func shared(t testing.TB, s store.Store, key string, limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewSharedBucket(s, key, limits...))
}

// tenants returns a Keyed of buckets.
func tenants(max int, limit outbound.Limit) *outbound.Keyed[string] {
	return &outbound.Keyed[string]{Max: max, New: func(key string) (outbound.Limiter, error) { return outbound.NewBucket(key, limit) }}
}

// itself is the label of a key.
func itself(key string) string { return key }

// take has the limiter admit a call, of cost 1 if none is given.
func take(t testing.TB, l outbound.Limiter, cost ...float64) outbound.Permit {
	c := outbound.Cost{1}
	copy(c[:], cost)
	return must(l.Acquire(bg, c))
}

// hold holds a bucket for d.
func hold(t testing.TB, b *outbound.Bucket, d time.Duration) {
	t.Helper()
	check(t, b.Hold(bg, d))
}

// wait has n calls wait until stop.
func wait(l outbound.Limiter, n int) (stop func()) {
	ctx, cancel := context.WithCancel(bg)
	for range n {
		go func() { _, _ = l.Acquire(ctx, outbound.Cost{1}) }()
	}
	synctest.Wait()
	return func() { cancel(); synctest.Wait() }
}

// only returns the one limiter that a board shows.
func only(t testing.TB, b *Board) *Limiter {
	t.Helper()
	s := b.Snapshot(bg, Query{})
	fatalIf(t, len(s.Limiters) != 1, "%d limiters are shown", len(s.Limiters))
	return &s.Limiters[0]
}

// called returns what a board shows of a name.
func called(t testing.TB, b *Board, name string) *Limiter {
	t.Helper()
	all := b.Snapshot(bg, Query{}).Limiters
	i := slices.IndexFunc(all, func(l Limiter) bool { return l.Name == name && l.Label == "" })
	fatalIf(t, i < 0, "%s is not shown", name)
	return &all[i]
}

// metricsOf returns what a scraper gets.
func metricsOf(b *Board) string {
	var text strings.Builder
	b.prometheus(bg, &text)
	return text.String()
}

// exports checks that the metrics have these lines.
func exports(t testing.TB, b *Board, lines ...string) {
	t.Helper()
	text := metricsOf(b)
	for _, line := range lines {
		errorIf(t, !strings.Contains(text, "\ndripfeed_"+line+"\n"), "no %s in\n%s", line, text)
	}
}

// lacks checks that the metrics do not have these parts.
func lacks(t testing.TB, b *Board, parts ...string) {
	t.Helper()
	text := metricsOf(b)
	for _, part := range parts {
		errorIf(t, strings.Contains(text, part), "the metrics have %s", part)
	}
}

func jsonOf(t testing.TB, v any) string {
	return string(must(json.Marshal(v)))
}

type limiterFunc func(context.Context, outbound.Cost) (outbound.Permit, error)

func (f limiterFunc) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return f(ctx, c)
}

// fakeStore is a store that counts its requests, and can hang, fail or be late.
type fakeStore struct {
	*store.Memory
	stats store.StoreStats
	trips atomic.Int64
	hangs atomic.Bool
	late  atomic.Int64          // nanoseconds from an update to its reply
	err   atomic.Pointer[error] // of each request
}

func newStore() *fakeStore { return &fakeStore{Memory: store.NewMemory()} }

func (s *fakeStore) Stats() store.StoreStats { return s.stats }

// fail makes requests fail with err, or succeed if it is nil.
func (s *fakeStore) fail(err error) { s.err.Store(&err) }

func (s *fakeStore) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	s.trips.Add(1)
	if s.hangs.Load() {
		<-ctx.Done()
		return store.Reply{}, ctx.Err()
	}
	if err := s.err.Load(); err != nil && *err != nil {
		return store.Reply{}, *err
	}
	r, err := s.Memory.Update(ctx, key, op)
	r.When = time.Now()
	time.Sleep(time.Duration(s.late.Load()))
	return r, err
}

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
	`<img src=x onerror="window.hit=1">`, `"><script>window.hit=1</script>`, `'`, "a\nb\r\tc\x00d", "\xff\xfe bytes \xc3", "\u202egnirts\u202c\u2069\u202e",
	"שלום עולם", "&amp;name=x&do=hold", "{{.}}${1}", strings.Repeat("long", 2_500), "__proto__", "constructor", "",
}

// hostileRow returns a row that says s wherever it says anything.
func hostileRow(s string) Limiter {
	return Limiter{
		Name: s, Label: s, ID: idOf(s, s), Severity: Stopped, Trouble: []string{s, s}, Bucket: true, Shared: true, Err: s, Reason: s, HeldFor: time.Minute,
		Explain: &outbound.Explanation{Key: s, AsOf: time.Now(), Cost: outbound.Cost{1}, Because: "never", Limit: s, Err: errors.New(s), States: []outbound.State{{Limit: outbound.Limit{Name: s}}}},
		Limits:  []Limit{{Name: s, Level: 1, Capacity: 2}, {Name: s, Unit: 3, Level: 1, Capacity: 2}},
		Calls: Calls{Second: Second{Admitted: 1, Refused: 1, Failed: 1, ByAPI: 1}, ByLimit: map[string]uint64{s: 1}, ByError: map[string]uint64{s: 1}, ByReason: map[string]uint64{s: 1},
			Units: [units]float64{1, 1, 1, 1}},
		Budgets: []Budget{{Budget: outbound.Budget{Policy: s, Unit: s, Limit: 2, Remaining: 1}}},
		Ledger:  []Entry{{Label: s, Part: 0.5, Of: s, Rows: []ledger.Row{{Limiter: s, Label: s, Unit: s, Sums: ledger.Sums{Charged: 1, Refused: 1, Waited: 1}, Money: 1}}}},
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

// explained returns a bucket's explanation of a call: of its wait, and why. change has more to say.
func explained(now time.Time, wait time.Duration, because, limit string, change func(*outbound.Explanation), states ...outbound.State) *outbound.Explanation {
	e := &outbound.Explanation{Key: "api", AsOf: now, Cost: outbound.Cost{1}, Wait: wait, Because: because, Limit: limit, States: states}
	for i := range states {
		states[i].Speed = 1
	}
	if change != nil {
		change(e)
	}
	return e
}

// stateOf returns the state of a limit.
func stateOf(l outbound.Limit, level float64, wait time.Duration) outbound.State {
	return outbound.State{Limit: l, Level: level, Wait: wait}
}

// office returns what a Board of a busy program shows.
func office(now time.Time) Snapshot {
	ago := now.Add
	wave := func(low, high float64) func(int) Second {
		return func(i int) Second {
			return Second{Admitted: uint64(low + (high-low)*math.Abs(math.Sin(float64(i*i)/7)))}
		}
	}
	calls := func(admitted uint64, waited time.Duration, units ...float64) (c Calls) {
		c.Admitted, c.Units[0], c.Waits = admitted, float64(admitted), store.Times{Count: admitted, Time: waited}
		copy(c.Units[1:], units)
		return c
	}
	with := func(c Calls, change func(*Calls)) Calls { change(&c); return c }
	used := func(label string, part float64, of string, calls, tokens, refused, waited float64) Entry {
		return Entry{label, part, of, []ledger.Row{{Label: label, Unit: "calls", Sums: ledger.Sums{Charged: calls, Refused: refused, Waited: waited}}, {Label: label, Unit: "tokens", Sums: ledger.Sums{Charged: tokens + 500, Returned: 500}, Money: tokens / 1e6}}}
	}
	leaky, per := outbound.Limit{Capacity: 40, LeakRate: 2, Name: "leaky"}, outbound.PerSecond
	tokens := outbound.Limit{Capacity: 8_000, LeakRate: 1_366, Unit: 1, Name: "tokens"}
	all := Snapshot{
		At: now, Began: ago(-34 * time.Minute), Hidden: 12_337,
		Limiters: []Limiter{
			{
				Name: "shopify", Label: "snow-devil", Severity: Stopped, HeldFor: 11_800 * time.Millisecond, Reason: "rate", Speed: 0.9,
				Trouble: []string{"No call leaves for 12 s: the API has refused calls that came too fast.", "Calls leave at 90 % of the configured rate, because the API has refused some."},
				Explain: explained(now, 11_800*time.Millisecond, "hold", "leaky", func(e *outbound.Explanation) {
					e.Refusals, e.States[0].HeldFor, e.States[0].Reason, e.States[0].Speed = 1, e.Wait, "rate", 0.9
				}, stateOf(leaky, 39, 0)),
				Limits: []Limit{{Name: "leaky", Level: 39, Capacity: 40, LeakRate: 2, EmptyIn: 32 * time.Second}},
				Minute: minuteOf(0, 12*time.Millisecond, func(i int) Second {
					switch s := wave(1, 5)(i); {
					case i < 47:
						return s
					case i == 47:
						return Second{Admitted: 3, ByAPI: 1}
					}
					return Second{Refused: 4}
				}),
				Calls: with(calls(4_070, 9*time.Second), func(c *Calls) {
					c.Refused, c.ByLimit, c.ByAPI, c.ByReason = 51, map[string]uint64{"leaky": 51}, 3, map[string]uint64{"rate": 3}
				}),
			},
			{
				Name: "payments", Severity: Stopped, Shared: true, Speed: 1, Queue: &queue.Stats{Waiting: 8, Oldest: 1_300 * time.Millisecond, Late: 4},
				Err: "dial tcp 10.0.0.7:6379: connect: connection refused",
				Trouble: []string{"Its store does not answer (dial tcp 10.0.0.7:6379: connect: connection refused); what is shown is 14 s old.",
					"8 calls of this process wait in the queue, the first for 1.3 s.", "280 calls failed in the last minute, the latest because the store failed."},
				Explain: explained(ago(-14*time.Second), 1_500*time.Millisecond, "booked", "100 per 1s", func(e *outbound.Explanation) { e.Ahead = 8 }, stateOf(per(100), 1, 160*time.Millisecond)),
				Limits:  []Limit{{Name: "100 per 1s", Used: 0, Of: 100, Window: time.Second, LeakRate: 100}},
				Minute: minuteOf(200*time.Millisecond, 1_400*time.Millisecond, func(i int) Second {
					if i < 45 {
						return Second{Admitted: uint64(58 + 9*(i%4))}
					}
					return Second{Failed: 20}
				}),
				Calls: with(calls(131_204, 2*time.Hour), func(c *Calls) { c.Failed, c.Cancelled, c.ByError = 303, 12, map[string]uint64{"store": 303} }),
			},
			{
				Name: "stripe", Severity: Slowed, Speed: 0.56, Queue: &queue.Stats{Waiting: 3, Oldest: 120 * time.Millisecond, NextIn: 18 * time.Millisecond},
				Trouble: []string{"Calls leave at 56 % of the configured rate, because the API has refused some.", "3 calls wait in the queue, the first for 120 ms."},
				Explain: explained(now, 60*time.Millisecond, "booked", "25 per 1s", func(e *outbound.Explanation) { e.Ahead, e.States[0].Speed = 3, 0.56 }, stateOf(per(25), 1, 18*time.Millisecond)),
				Limits:  []Limit{{Name: "25 per 1s", Used: 14, Of: 25, Window: time.Second}},
				Minute: minuteOf(40*time.Millisecond, 310*time.Millisecond, func(i int) Second {
					s := Second{Admitted: uint64(25 - min(i/4, 11))}
					if i%11 == 3 && i < 45 {
						s.ByAPI = 2
					}
					return s
				}),
				Calls: with(calls(38_911, 31*time.Minute), func(c *Calls) {
					c.Cancelled, c.ByAPI, c.ByReason = 2, 4, map[string]uint64{"rate": 3, "concurrency": 1}
				}),
			},
			{
				Name: "llm", Label: "batch", Severity: Busy, Speed: 1, Queue: &queue.Stats{Waiting: 16, Oldest: 6_400 * time.Millisecond, NextIn: 350 * time.Millisecond},
				Trouble: []string{"16 calls wait in the queue, the first for 6.4 s."},
				Explain: explained(now, 6_700*time.Millisecond, "limit", "tokens", func(e *outbound.Explanation) {
					e.Ahead, e.AtLeast, e.Booked, e.Cost = 16, true, 6*time.Second, outbound.Cost{1, 400}
				},
					stateOf(outbound.Limit{Capacity: 60, LeakRate: 8, Name: "requests"}, 3.08, 0), stateOf(tokens, 8_205, 445*time.Millisecond), stateOf(outbound.InFlight(24).Of(0, "in progress"), 5, 0)),
				Limits: []Limit{
					{Name: "requests", Level: 3.08, Capacity: 60, LeakRate: 8, EmptyIn: 385 * time.Millisecond},
					{Name: "tokens", Unit: 1, Level: 8_205, Capacity: 8_000, LeakRate: 1_366, EmptyIn: 6 * time.Second},
					{Name: "in progress", Level: 5, Capacity: 24, InFlight: true, InProgress: 5, Oldest: 21 * time.Second},
				},
				Minute: minuteOf(5_400*time.Millisecond, 6_400*time.Millisecond, wave(1, 5)),
				Calls:  calls(6_115, 9*time.Hour, 2_791_300),
				Ledger: []Entry{used("nightly report", 0.62, "tokens", 1_223, 1_730_610, 0, 1_190), used("search index", 0.55, "calls", 3_363, 753_650, 12, 2_804), used("acme/eu", 0.09, "calls", 550, 111_650, 0, 3), used("other", 0.16, "calls", 979, 195_390, 0, 0)},
			},
			{
				Name: "github", Label: "acme", Speed: 1,
				Explain: explained(now, 0, "", "per second", nil, stateOf(per(12).Of(0, "per second"), 0.1, 0), stateOf(outbound.Window(5_000, time.Hour).Of(0, "per hour"), 345, 0)),
				Limits: []Limit{
					{Name: "per second", Used: 11, Of: 12, Window: time.Second},
					{Name: "per hour", Level: 345.2, Capacity: 5_000, LeakRate: 5_000. / 3_600, EmptyIn: 248 * time.Second, Pace: 9.3, UsedUpIn: 501 * time.Second},
				},
				Minute:  minuteOf(0, 80*time.Millisecond, wave(6, 12)),
				Calls:   calls(1_390, 0),
				Budgets: []Budget{{Budget: outbound.Budget{Policy: "core", Limit: 5_000, Remaining: 4_205, Reset: 26 * time.Minute}, Age: 300 * time.Millisecond, OtherClients: 0.09}},
			},
			{
				Name: "tenants", Keyed: true, Keys: 12_340, Calls: with(calls(2_204_118, 0), func(c *Calls) { c.Refused, c.ByLimit = 1_204, map[string]uint64{"5 per 1s": 1_204} }),
				Minute: minuteOf(0, time.Millisecond, wave(980, 1_150)),
			},
			{
				Name: "tenants", Label: "umbrella", Severity: Busy, Speed: 1, Explain: explained(now, 170*time.Millisecond, "limit", "5 per 1s", nil, stateOf(per(5), 1, 170*time.Millisecond)),
				Limits: []Limit{{Name: "5 per 1s", Level: 1.84, Capacity: 1, LeakRate: 5, NextIn: 170 * time.Millisecond}},
			},
			{
				Name: "tenants", Label: "initech", Speed: 1, Explain: explained(now, 0, "", "", nil, stateOf(per(5), 0.6, 0)),
				Limits: []Limit{{Name: "5 per 1s", Level: 0.6, Capacity: 1, LeakRate: 5}},
			},
			{ // which is so calm that only a search shows it
				Name: "tenants", Label: "hooli", Speed: 1,
				Limits: []Limit{{Name: "5 per 1s", Level: 0.1, Capacity: 1, LeakRate: 5}},
			},
		},
		Stores: []Store{
			{
				Name: "redis", Unavailable: true, UnavailableFor: 14 * time.Second, Err: "dial tcp 10.0.0.7:6379: connect: connection refused",
				Trouble: []string{"10.0.0.7:6379 has not answered for 14 s: dial tcp 10.0.0.7:6379: connect: connection refused."},
				Stats:   &store.StoreStats{Answered: 131_222, Repeats: 12, Remembered: 1_840, Failed: 19, Requests: store.Times{Count: 91_044, Time: 91_044 * 640 * time.Microsecond}},
			},
			{Name: "redis-eu", Fallback: &fallback.State{Outages: 3}, Stats: &store.StoreStats{Answered: 9_310, Requests: store.Times{Count: 4_102, Time: 4_102 * 2 * time.Millisecond}}},
		},
		Events: []Event{
			{At: ago(-13 * time.Second), Name: "shopify snow-devil", Kind: "held", Words: "no call leaves (for 25 s, reason rate)"},
			{At: ago(-13 * time.Second), Name: "shopify snow-devil", Kind: "slowed", Words: "the API has refused calls: they leave more slowly (speed 0.9)"},
			{At: ago(-4 * time.Minute), Name: "stripe", Kind: "slowed", Words: "the API has refused calls: they leave more slowly (speed 0.56)", Times: 4},
			{At: ago(-26 * time.Hour), Name: "llm batch", Kind: "released", Words: "calls leave again, after a hold (for 2 min)"},
		},
	}
	for i := range all.Limiters {
		l := &all.Limiters[i]
		if l.ID, l.Bucket = idOf(l.Name, l.Label), !l.Keyed; l.Explain != nil {
			l.Explain.Key = l.Name + " " + l.Label
		}
	}
	return all
}

func idOf(name, label string) string {
	return url.Values{"name": {name}, "label": {label}}.Encode()
}
