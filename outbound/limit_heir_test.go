package outbound_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func TestALimitWithoutANameKeepsItsLevelWhenAnotherComesOrGoes(t *testing.T) {
	hour, many, named := outbound.Limit{Capacity: 10, LeakRate: 1. / 360}, outbound.PerSecond(1000).Burst(100), outbound.PerMinute(900).Burst(100).Of(0, "minute")
	window := outbound.PerHour(100).Burst(10)
	for name, sets := range map[string][][]outbound.Limit{
		"a second comes":          {{hour}, {hour, many}},
		"a second before it":      {{hour}, {many, hour}},
		"a window":                {{window}, {window, many}},
		"it comes and goes":       {{hour}, {hour, many}, {hour}},
		"it goes":                 {{hour, many}, {hour}},
		"it goes and comes":       {{many, hour}, {hour}, {hour, many}},
		"it is set, and one goes": {{hour}, {hour, many}, {many, hour}, {hour}},
		"a named one comes":       {{hour}, {hour, named}, {hour, named, many}},
		"another unit":            {{many, hour}, {outbound.Limit{Capacity: 10, LeakRate: 1. / 360, Unit: 1}, hour}},
		"a day comes and goes":    {{outbound.Window(10, time.Hour)}, {outbound.Window(10, time.Hour), outbound.Daily(99, time.UTC)}, {outbound.Window(10, time.Hour)}},
		"an hour goes and comes":  {{many, outbound.Hourly(10)}, {outbound.Hourly(10)}, {outbound.Hourly(10), many}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, shared := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(time.Minute) // no call leaves in the first second of an hour
					b := outbound.Must(outbound.NewBucket("k", sets[0]...))
					if shared {
						b = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "k", sets[0]...))
					}
					if _, err := b.Acquire(background, outbound.Cost{10}); err != nil {
						t.Fatal(err)
					}
					for _, limits := range sets[1:] {
						if err := b.SetLimits(background, limits...); err != nil {
							t.Fatal(err)
						}
						if _, err := b.Acquire(background, outbound.Cost{10}); !errors.Is(err, outbound.ErrThrottled) {
							t.Fatalf("shared: %v, with %v: %v, want no room", shared, limits, err)
						}
					}
				})
			}
		})
	}
}

// A name that was given is never taken from its limit, and no two limits get one.
func TestALimitWithANameInheritsNone(t *testing.T) {
	b := outbound.Must(outbound.NewBucket("k", outbound.PerSecond(10), outbound.PerHour(100)))
	limits := []outbound.Limit{outbound.PerSecond(10), outbound.PerHour(9).Of(0, "100 per 1h")}
	for range 2 {
		if err := b.SetLimits(background, limits...); err != nil {
			t.Fatal(err)
		}
		states, err := b.States(background)
		if err != nil || len(states) != 2 || states[0].Limit.Name != "" || states[1].Limit.Name != "100 per 1h" {
			t.Fatalf("%+v, %v", states, err)
		}
	}
}
