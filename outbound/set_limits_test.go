package outbound_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A name that was given is never taken from its limit, and no two limits get one.
func TestSetLimits_NamedLimitKeepsItsName(t *testing.T) {
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

// Which of several limits stays is not guessed: those without a window need names.
func TestNewBucket_LiteralsOfOneUnitNeedNames(t *testing.T) {
	limits := []outbound.Limit{{Capacity: 10, LeakRate: 1}, {Capacity: 20, LeakRate: 0.5}}
	if _, err := outbound.NewBucket("k", limits...); !errors.Is(err, outbound.ErrInvalid) || !strings.Contains(err.Error(), "different names") {
		t.Error(err)
	}
	limits[1].Name = "slow"
	limits = append(limits, outbound.Limit{Capacity: 20, LeakRate: 0.5, Unit: 1})
	if _, err := outbound.NewBucket("k", limits...); err != nil {
		t.Error(err)
	}
}

// A limit without a name keeps what is in it when its number changes, and when others come or go: else as many calls
// would leave once more.
func TestSetLimits_LimitWithoutNameKeepsItsLevel(t *testing.T) {
	many, window, day := outbound.Limit{Capacity: 1000, LeakRate: 1000}, outbound.Window(100, time.Hour), outbound.Daily(100, time.UTC)
	hundred := outbound.Limit{Capacity: 100, LeakRate: 1e-6, Unit: 1}
	hour, fast, named := outbound.Limit{Capacity: 100, LeakRate: 1. / 36}, outbound.PerSecond(1000).Burst(100), outbound.PerMinute(900).Burst(100).Of(0, "minute")
	burst := outbound.PerHour(1000).Burst(100)
	for name, sets := range map[string][][]outbound.Limit{
		"a second comes":          {{hour}, {hour, fast}},
		"a second before it":      {{hour}, {fast, hour}},
		"a burst":                 {{burst}, {burst, fast}},
		"it comes and goes":       {{hour}, {hour, fast}, {hour}},
		"it goes":                 {{hour, fast}, {hour}},
		"it goes and comes":       {{fast, hour}, {hour}, {hour, fast}},
		"it is set, and one goes": {{hour}, {hour, fast}, {fast, hour}, {hour}},
		"a named one comes":       {{hour}, {hour, named}, {hour, named, fast}},
		"another unit":            {{fast, hour}, {outbound.Limit{Capacity: 100, LeakRate: 1. / 36, Unit: 1}, hour}},
		"a day comes and goes":    {{window}, {window, outbound.Daily(990, time.UTC)}, {window}},
		"an hour goes and comes":  {{fast, outbound.Hourly(100)}, {outbound.Hourly(100)}, {outbound.Hourly(100), fast}},
		"a window":                {{many, window}, {many, outbound.Window(50, time.Hour)}, {many, outbound.Window(25, time.Hour)}, {many, window}},
		"set again":               {{many, window}, {many, outbound.Window(50, time.Hour)}, {many, outbound.Window(50, time.Hour)}},
		"another goes":            {{many, window}, {outbound.Window(50, time.Hour)}, {many, outbound.Window(40, time.Hour)}, {window}},
		"another comes":           {{window}, {outbound.Window(50, time.Hour), many}, {many, outbound.Window(40, time.Hour)}},
		"two kinds":               {{outbound.PerHour(1e9).Burst(200), window}, {outbound.Window(50, time.Hour), outbound.PerHour(2e9).Burst(300)}},
		"two windows":             {{window, outbound.Window(10_000, 25*time.Hour)}, {outbound.Window(9_000, 25*time.Hour), outbound.Window(50, time.Hour)}},
		"a day":                   {{many, day}, {many, outbound.Daily(50, time.UTC)}, {outbound.Daily(40, time.UTC)}, {day, many}},
		"a day, and another's":    {{outbound.Daily(1000, newYork), day}, {outbound.Daily(900, newYork), outbound.Daily(50, time.UTC)}},
		"a literal":               {{outbound.PerSecond(1000).Burst(1000), {Capacity: 100, LeakRate: 1e-6}}, {outbound.PerSecond(1000).Burst(1000), {Capacity: 50, LeakRate: 2e-6}}, {{Capacity: 90, LeakRate: 1e-6}}},
		"a literal of other unit": {{many, hundred, outbound.Window(1e6, time.Hour).Of(1, "")}, {outbound.Window(2e6, time.Hour).Of(1, ""), {Capacity: 50, LeakRate: 2e-6, Unit: 1}, many}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, shared := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(12*time.Hour + time.Minute) // no call leaves in the first second of an hour
					b := outbound.Must(outbound.NewBucket("k", sets[0]...))
					if shared {
						b = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "k", sets[0]...))
					}
					if _, err := b.Acquire(background, outbound.Cost{100, 100}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(2 * time.Second)
					for _, limits := range sets[1:] {
						if err := b.SetLimits(background, limits...); err != nil {
							t.Fatal(err)
						}
						if _, err := b.Acquire(background, outbound.Cost{1, 1}); !errors.Is(err, outbound.ErrThrottled) {
							t.Fatalf("shared: %v, with %v: %v, want no room", shared, limits, err)
						}
					}
				})
			}
		})
	}
}
