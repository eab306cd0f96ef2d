package outbound

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A limit without a name has a label of its numbers, and its name stays empty.
func TestLimit_Label(t *testing.T) {
	for label, l := range map[string]Limit{
		"10 per 1s":                        PerSecond(10),
		"5000 per 1h":                      PerHour(5_000),
		"1000000 per 1h30m":                Per(1_000_000, 90*time.Minute).Burst(2),
		"0.5 per 1.5s":                     Per(0.5, 1500*time.Millisecond),
		"40 burst, 2/s":                    {Capacity: 40, LeakRate: 2},
		"30000 per 1m":                     PerMinute(30_000).Of(1, ""),
		"mine":                             PerMinute(7).Of(0, "mine"),
		"3 in flight":                      InFlight(3),
		"100 in any 10s":                   Window(100, 10*time.Second),
		"0.5 in 1m30s from the first":      FixedWindow(0.5, 90*time.Second),
		"1000000 per hour UTC":             Hourly(1_000_000),
		"10000 per day UTC":                Daily(10_000, time.UTC),
		"30 per month America/Los_Angeles": Monthly(30, pacific),
		"30 per week UTC from day 7":       Weekly(30, time.UTC).From(7),
	} {
		limits := []Limit{Limit{Capacity: 1, LeakRate: 1}.Of(3, "other"), l}
		if s := states(t, Must(NewBucket("k", limits...)))[1]; s.Label() != label || s.Limit.Name != l.Name {
			t.Errorf("%v is named %q and labelled %q, want %q", l, s.Limit.Name, s.Label(), label)
		}
		if _, err := NewBucket("k", l, l); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `"`+label+`"`) && !l.inFlight {
			t.Errorf("%v, twice: %v", l, err)
		}
	}
	if _, err := NewBucket("k", PerMinute(1), Window(1, time.Minute), FixedWindow(1, time.Minute)); err != nil {
		t.Errorf("three kinds of one number and length: %v", err)
	}
	if _, err := NewBucket("k", PerSecond(1), PerSecond(1).Of(0, "1 per 1s"), PerHour(1)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `"1 per 1s"`) {
		t.Errorf("a name that is another's label: %v", err)
	}
}

// A limit without a name has one label: in errors, events, states and explanations, wherever the bucket lives.
func TestState_LabelIsThatOfErrorsAndEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wide := PerSecond(1e6).Burst(1e6)
		for label, l := range map[string]Limit{
			"1 per 1h":                   PerHour(1),
			"40 per 1h":                  PerHour(40).Burst(1),
			"1 burst, 0.5/s":             {Capacity: 1, LeakRate: 0.5},
			"1 in any 1m":                Window(1, time.Minute),
			"1 in 2m from the first":     FixedWindow(1, 2*time.Minute),
			"1 per day America/New_York": Daily(1, zone("America/New_York")),
			"1 in flight":                InFlight(1),
			"mine":                       PerHour(1).Of(0, "mine"),
		} {
			buckets := map[string]*Bucket{
				"alone":           Must(NewBucket("k", l)),
				"with others":     Must(NewBucket("k", wide, l)),
				"of another unit": Must(NewBucket("k", l, wide.Of(1, ""))),
				"set":             Must(NewBucket("k", wide)),
			}
			must(t, buckets["set"].SetLimits(ctx, l))
			if label != "1 in flight" {
				buckets["shared"] = Must(NewSharedBucket(store.NewMemory(), "k", l))
				buckets["shared, with others"] = Must(NewSharedBucket(store.NewMemory(), "k", wide, l))
			}
			for name, b := range buckets {
				var event string
				o := Observe(b, "", func(_ context.Context, e Event) { event += e.Limit })
				p, err := o.Acquire(ctx, Cost{1, 1})
				must(t, err)
				if full := refused(t, o, Cost{1, 1}); full.Limit != label || event != label || !strings.Contains(full.Error(), `is over the limit "`+label+`"`) {
					t.Errorf("%s, %s: %v, event %q", label, name, full, event)
				}
				err = b.Book(ctx, &BookRequest{Costs: []Cost{{1, 1}}})
				if full, ok := errors.AsType[*ThrottledError](err); !ok || full.Limit != label {
					t.Errorf("%s, %s: booked: %v", label, name, err)
				}
				s, _ := b.State(ctx)
				e, err := b.Explain(ctx, Cost{1, 1})
				if err != nil || e.Limit != label || s.Label() != label {
					t.Errorf("%s, %s: %v, state %q", label, name, e, s.Label())
				}
				p.Done()
			}
		}
		b := Must(NewBucket("k", PerHour(1)))
		_, _ = b.Acquire(ctx, Cost{1})
		if n := testing.AllocsPerRun(100, func() { _, _ = b.Acquire(ctx, Cost{1}) }); n > 1 {
			t.Errorf("a refusal allocates %v times, and not its error alone", n)
		}
	})
}
