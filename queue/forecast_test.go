package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Calls that wait use a quota up as fast as the other limits let them, after a hold.
func TestExplain_WaitingCallsUseAQuotaUp(t *testing.T) {
	for name, of := range map[string]struct {
		before, calls int
		hold, want    time.Duration
	}{"enough": {0, 2_000, 0, 990 * time.Second}, "held": {0, 2_000, time.Hour, time.Hour + 990*time.Second}, "too few": {0, 500, 0, 0},
		"and those that come": {120, 500, 0, 350 * time.Minute}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := outbound.Must(outbound.NewBucket("k", outbound.Limit{Capacity: 1, LeakRate: 1}, outbound.Daily(1_000, time.UTC)))
				defer b.Observe(func(outbound.Event) {})()
				q := New(b, Config{})
				time.Sleep(time.Hour)
				for range of.before {
					time.Sleep(time.Minute)
					p, err := b.Acquire(t.Context(), outbound.Cost{1})
					if err != nil {
						t.Fatal(err)
					}
					p.Done()
				}
				for range of.calls {
					go func() { _, _ = q.Acquire(t.Context(), outbound.Cost{1}) }()
				}
				time.Sleep(10 * time.Second)
				if of.hold > 0 {
					if err := b.Hold(t.Context(), of.hold); err != nil {
						t.Fatal(err)
					}
				}
				e, err := q.Explain(t.Context(), outbound.Cost{1})
				if err != nil {
					t.Fatal(err)
				}
				if got := e.States[1].UsedUpIn; got < of.want-of.want/30 || got > of.want+of.want/30 {
					t.Errorf("used up in %v, want %v", got, of.want)
				}
			})
		})
	}
}
