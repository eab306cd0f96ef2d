package outbound_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A limit without a name has one label: in errors, events, states and explanations, wherever the bucket lives.
func TestState_LabelIsThatOfErrorsAndEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wide := outbound.PerSecond(1e6).Burst(1e6)
		for label, l := range map[string]outbound.Limit{
			"1 per 1h":                   outbound.PerHour(1),
			"40 per 1h":                  outbound.PerHour(40).Burst(1),
			"1 burst, 0.5/s":             {Capacity: 1, LeakRate: 0.5},
			"1 per 1m":                   outbound.Window(1, time.Minute),
			"1 per 2m":                   outbound.FixedWindow(1, 2*time.Minute),
			"1 per day America/New_York": outbound.Daily(1, newYork),
			"1 in flight":                outbound.InFlight(1),
			"mine":                       outbound.PerHour(1).Of(0, "mine"),
		} {
			buckets := map[string]*outbound.Bucket{
				"alone":           outbound.Must(outbound.NewBucket("k", l)),
				"with others":     outbound.Must(outbound.NewBucket("k", wide, l)),
				"of another unit": outbound.Must(outbound.NewBucket("k", l, wide.Of(1, ""))),
				"set":             outbound.Must(outbound.NewBucket("k", wide)),
			}
			if err := buckets["set"].SetLimits(background, l); err != nil {
				t.Fatal(err)
			}
			if label != "1 in flight" {
				buckets["shared"] = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "k", l))
				buckets["shared, with others"] = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "k", wide, l))
			}
			for name, b := range buckets {
				var event string
				o := outbound.Observe(b, "", func(_ context.Context, e outbound.Event) { event += e.Limit })
				p, err := o.Acquire(background, outbound.Cost{1, 1})
				if err != nil {
					t.Fatal(err)
				}
				_, err = o.Acquire(background, outbound.Cost{1, 1})
				var full *outbound.ThrottledError
				if !errors.As(err, &full) || full.Limit != label || event != label || !strings.Contains(err.Error(), `is over the limit "`+label+`"`) {
					t.Errorf("%s, %s: %v, event %q", label, name, err, event)
				}
				var k outbound.BookRequest
				k.Costs = []outbound.Cost{{1, 1}}
				if err := b.Book(background, &k); !errors.As(err, &full) || full.Limit != label {
					t.Errorf("%s, %s: booked: %v", label, name, err)
				}
				s, _ := b.State(background)
				e, err := b.Explain(background, outbound.Cost{1, 1})
				if err != nil || e.Limit != label || s.Label() != label {
					t.Errorf("%s, %s: %v, state %q", label, name, e, s.Label())
				}
				p.Done()
			}
		}
		b := outbound.Must(outbound.NewBucket("k", outbound.PerHour(1)))
		_, _ = b.Acquire(background, outbound.Cost{1})
		if n := testing.AllocsPerRun(100, func() { _, _ = b.Acquire(background, outbound.Cost{1}) }); n > 1 {
			t.Errorf("a refusal allocates %v times, and not its error alone", n)
		}
	})
}

var newYork = func() *time.Location {
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		panic(err)
	}
	return zone
}()
