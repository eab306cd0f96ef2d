package outbound

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// While calls are booked behind a window, the window is what they wait for, and not the limit beside it that their
// places fill.
func TestExplain_NamesTheLimitBehindReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("key", PerSecond(10), Window(20, 10*time.Minute)))
		for range 20 {
			mustAcquire(t, b)
			time.Sleep(200 * time.Millisecond)
		}
		for range 3 {
			k := BookRequest{Costs: []Cost{{1}}, Wait: time.Hour, Horizon: time.Hour}
			if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 1 {
				t.Fatal(err)
			}
			if e := explained(t, b, Cost{1}); e.Limit != "20 per 10m" || e.Wait < 9*time.Minute {
				t.Errorf("%v", e)
			}
		}
		// Of two leaky limits the slow one.
		b = Must(NewBucket("key", PerSecond(10), PerMinute(6)))
		k := BookRequest{Costs: []Cost{{1}, {1}, {1}, {1}}, Wait: time.Hour, Horizon: time.Hour}
		if err := b.Book(ctx, &k); err != nil {
			t.Fatal(err)
		}
		if e := explained(t, b, Cost{1}); e.Limit != "6 per 1m" {
			t.Errorf("%v", e)
		}
		// A limit that a call has filled above its brim is its own cause.
		b = Must(NewBucket("key", Limit{Capacity: 10, LeakRate: 10}, Limit{Capacity: 2, LeakRate: 2, Name: "slow"}))
		p := mustAcquire(t, b)
		p.Settle(Cost{40})
		if e := explained(t, b, Cost{1}); e.Limit != "slow" {
			t.Errorf("%v", e)
		}
	})
}

// A call that cost more than it was charged fills a limit above its brim. That books nobody.
func TestExplain_AboveTheCapacityIsNotBooked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("api", Limit{Capacity: 10, LeakRate: 1, Name: "units"}))
		p, err := b.Acquire(t.Context(), Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Settle(Cost{15})
		p.Done()
		e, err := b.Explain(t.Context(), Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		if text := e.String(); e.Booked != 0 || e.Because != "limit" || strings.Contains(text, "booked") || !strings.Contains(text, "capacity for 1 in 6s") {
			t.Errorf("booked for %v: %s", e.Booked, text)
		}
	})
}
