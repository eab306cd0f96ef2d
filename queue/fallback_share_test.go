package queue

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A worker that has a quarter of a limit while the store is away foretells by the quarter.
func TestFallback_QueueForecastsByTheShare(t *testing.T) {
	for name, c := range map[string]struct {
		limit    outbound.Limit
		a, b     time.Duration // when the first two calls go
		slack    time.Duration // to which a window's forecast is a lower bound
		tooLarge float64       // more than the share, and not more than the limit
	}{
		"one after the other": {outbound.PerSecond(2), 2020 * ms, 4040 * ms, 0, 0},
		"burst":               {outbound.Limit{Capacity: 8, LeakRate: 2}, 2 * time.Second, 4 * time.Second, 0, 3},
		"window":              {outbound.Window(4, 2500*ms), 2510 * ms, 5020 * ms, time.Second, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory()}
			s.away.Store(true)
			b, err := outbound.NewSharedBucket(&fallback.Store{Store: s, Share: 0.25}, "k", c.limit)
			if err != nil {
				t.Fatal(err)
			}
			q := New(b, Config{MaxWait: 5500 * ms})
			began := time.Now()
			close := func(what string, d, want time.Duration) {
				if t.Helper(); d > want+ms || d < want-c.slack-ms {
					t.Errorf("%s: %s %v, want %v", name, what, d, want)
				}
			}
			is, err := b.State(bg)
			if err != nil {
				t.Fatal(err)
			}
			close("NextIn is", is.NextIn, c.a)
			e, err := b.Explain(bg, outbound.Cost{1})
			if err != nil || e.Because != "limit" || e.Limit == "" {
				t.Errorf("%s: %v, %v", name, e, err)
			}
			close("Explain tells", e.Wait, c.a)
			if c.tooLarge > 0 {
				if e, err := b.Explain(bg, outbound.Cost{c.tooLarge}); err != nil || e.Wait >= 0 || e.Because != "limit" {
					t.Errorf("%s: of a call that the share has no room for: %v, %v", name, e, err)
				}
			}
			went := make(chan time.Duration, 7)
			for i := range 7 {
				go func() {
					came := time.Now()
					_, err := q.Acquire(bg, outbound.Cost{1})
					var full *outbound.ThrottledError
					switch took := time.Since(came); {
					case err == nil:
						went <- time.Since(began)
					case !errors.As(err, &full):
						t.Errorf("%s, call %d: %v", name, i, err)
					case took > 0 && c.slack == 0:
						t.Errorf("%s, call %d: refused after %v, not at once", name, i, took)
					case c.slack == 0:
						close("RetryAfter is", full.RetryAfter, c.b+c.a-time.Since(began))
					}
				}()
				pass(10 * ms)
				if i == 1 && c.slack == 0 {
					if e, err := q.Explain(bg, outbound.Cost{1}); err != nil || e.Ahead != 2 {
						t.Errorf("%s: %v, %v", name, e, err)
					} else {
						close("the queue's Explain tells", e.Wait, c.b+c.a-time.Since(began))
					}
				}
			}
			pass(time.Minute)
			if len(went) != 2 {
				t.Fatalf("%s: %d went, want 2", name, len(went))
			}
			close("the first went after", <-went, c.a)
			close("the second went after", <-went, c.b)
		})
	}
}

// A call that is more than the share has room for fails with the store's error, and not as one that can never go. It
// fails alone.
func TestFallback_CostAboveTheShareFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory()}
		s.away.Store(true)
		b, err := outbound.NewSharedBucket(&fallback.Store{Store: s, Share: 0.25}, "k", outbound.Limit{Capacity: 8, LeakRate: 2})
		if err != nil {
			t.Fatal(err)
		}
		q := New(b, Config{MaxWait: time.Minute})
		a := &answers{t: t}
		for i := range 6 {
			go func() {
				if i != 1 {
					a.call(bg, q)
				} else if _, err := q.Acquire(bg, outbound.Cost{3}); !errors.Is(err, errAway) {
					t.Error(err)
				}
			}()
			pass(10 * ms)
		}
		pass(time.Minute)
		a.expect(5, 0)
	})
}
