package outbound

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A cost that forgets the first unit is no call without pace: it is an error that says so. One that is Free there
// takes only the other units.
func TestCost_WithoutTheFirstUnitIsInvalidUnlessFree(t *testing.T) {
	const calls, tokens, output = 0, 1, 2
	synctest.Test(t, func(t *testing.T) {
		limits := []Limit{PerMinute(1e6).Burst(1e6).Of(tokens, "tokens"), PerMinute(10).Burst(10)}
		for name, b := range map[string]*Bucket{
			"in memory": Must(NewBucket("llm", limits...)),
			"in flight": Must(NewBucket("llm", append(limits, InFlight(100))...)),
			"shared":    Must(NewSharedBucket(store.NewMemory(), "llm", limits...)),
		} {
			for _, c := range []Cost{{}, {tokens: 100}, {output: 1}, {tokens: Free}} {
				_, err := b.Acquire(ctx, c)
				able, ableErr := b.AbleToAccept(ctx, c)
				booked := b.Book(ctx, &BookRequest{Costs: []Cost{c}})
				e, _ := b.Explain(ctx, c)
				for _, err := range []error{err, ableErr, booked, e.Err} {
					var bad *CostError
					if !errors.As(err, &bad) || bad.Err != ErrInvalid || bad.Cost != c || !strings.Contains(err.Error(), `for "llm" lacks number 0 (limit "10 per 1m")`) {
						t.Errorf("%s, %v: %v", name, c, err)
					}
				}
				if able {
					t.Errorf("%s, %v: able", name, c)
				}
			}
			for range 12 { // two more than the calls of a minute
				for _, c := range []Cost{{calls: Free, tokens: 100}, {Free}, {Free, Free, Free, Free}} {
					p, err := b.Acquire(ctx, c)
					if able, err := b.AbleToAccept(ctx, c); !able || err != nil {
						t.Errorf("%s, %v: able %v, %v", name, c, able, err)
					}
					if e, err := b.Explain(ctx, c); err != nil || e.Because != "" {
						t.Errorf("%s, %v: %v, %v", name, c, e, err)
					}
					if err != nil {
						t.Fatalf("%s, %v: %v", name, c, err)
					}
					p.Settle(Cost{Free, c[tokens] / 2})
					p.Done()
				}
			}
			if s := states(t, b); s[0].Level != 600 || s[1].Level != 0 {
				t.Errorf("%s: levels %v and %v, want 600 and 0", name, s[0].Level, s[1].Level)
			}
			p, err := b.Acquire(ctx, Cost{1})
			if err != nil {
				t.Errorf("%s: tokens that are known afterwards: %v", name, err)
			}
			p.Settle(Cost{Free, 50})
			if s := states(t, b); s[0].Level != 650 || s[1].Level != 0 {
				t.Errorf("%s: levels %v and %v, want 650 and 0", name, s[0].Level, s[1].Level)
			}
		}
		one := Must(NewBucket("k", Limit{Capacity: 1, LeakRate: 1}))
		for range 3 {
			p, err := one.Acquire(ctx, Cost{Free})
			if err != nil {
				t.Fatal(err)
			}
			p.Done()
		}
		p, err := one.Acquire(ctx, Cost{1})
		if _, err := one.Acquire(ctx, Cost{}); err == nil || !strings.Contains(err.Error(), `lacks number 0`) {
			t.Errorf("nothing: %v", err)
		}
		if p.Settle(Cost{Free}); err != nil || states(t, one)[0].Level != 0 {
			t.Errorf("settled to Free: level %v, %v", states(t, one)[0].Level, err)
		}
		time.Sleep(time.Second)
		slots := Must(NewBucket("k", InFlight(1)))
		for _, c := range []Cost{{}, {output: 3}, {Free}} {
			p, err := slots.Acquire(ctx, c)
			if err != nil {
				t.Errorf("calls in flight alone, %v: %v", c, err)
			}
			p.Done()
		}
	})
}
