package outbound

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A burst is a number from 1, which changes nothing, to the limit's number. The error of a larger one offers a limit.
func TestBurst_IsFromOneToTheLimitsNumber(t *testing.T) {
	for _, n := range []float64{1e-3, 0.5, 1, 1.7, 2, 10, 1000, 1e6} {
		for name, l := range map[string]Limit{"1": PerMinute(n).Burst(1), "1, twice": PerMinute(n).Burst(1).Burst(1)} {
			_, err := NewBucket("k", l)
			errorIf(t, err != nil || l != PerMinute(n), "PerMinute(%v), burst of %s: %+v, %v", n, name, l, err)
		}
		errorIs(t, errOf(NewBucket("k", PerMinute(n).Burst(max(1, n)))), nil, "PerMinute(%v).Burst of as many", n)
		for _, b := range []float64{math.Nextafter(n, 2*n), n + 0.5, n + 1, 2 * n} {
			_, err := NewBucket("k", PerMinute(n).Burst(b))
			errorIf(t, (err == nil) != (b == 1), "PerMinute(%v).Burst(%v): %v", n, b, err)
		}
	}
	for _, c := range []struct {
		burst float64
		offer string
	}{{20, "write Limit{Capacity: 20, LeakRate: 10}"}, {60, "write Limit{Capacity: 60, LeakRate: 10}"}, {0.5, ""}, {1e13, ""}, {inf, ""}, {nan, ""}} {
		_, err := NewBucket("k", PerSecond(10).Burst(c.burst))
		if !errors.Is(err, ErrInvalid) || !strings.HasSuffix(err.Error(), c.offer) || c.offer == "" && strings.Contains(err.Error(), "Limit{") {
			t.Errorf("%v, want %q", err, c.offer)
		}
	}
}

// A caller takes all that fits, and after each pause the burst again: no window has more than n.
func TestBurst_KeepsTheWindow(t *testing.T) {
	const window = time.Second
	for _, n := range []int{2, 3, 7, 20} {
		for b := 1; b <= n; b++ {
			bubble(t, fmt.Sprint(n, " in bursts of ", b), func(t *testing.T) {
				bucket := Must(NewBucket("k", Per(float64(n), window).Burst(float64(b))))
				var went []time.Time
				for len(went) < 8*n {
					if _, err := bucket.Acquire(ctx, Cost{1}); err == nil {
						went = append(went, time.Now())
					} else {
						time.Sleep(refused(t, bucket, Cost{1}).RetryAfter)
					}
					if len(went)%(3*n) == 0 {
						time.Sleep(2 * window)
					}
				}
				for i := range went[n:] {
					// The network may take all the jitter off.
					d := went[i+n].Sub(went[i]) - jitter
					fatalIf(t, d < window, "calls %d to %d are seen within %v", i, i+n, d)
				}
				// And no less than the limit allows: the burst, and then the rate.
				errorIf(t, b > 1 && went[b-1] != went[0], "the burst takes %v", went[b-1].Sub(went[0]))
				d, most := went[n].Sub(went[0]), window+jitter+time.Microsecond
				errorIf(t, d > most, "the first %d take %v", n+1, d)
			})
		}
	}
}

// A limit takes at least a nanosecond to drain.
func TestLimit_DrainsInNoLessThanANanosecond(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		ok    bool
	}{
		{Limit{Capacity: 1, LeakRate: 1e9}, true}, {Limit{Capacity: 1, LeakRate: 1.01e9}, false}, {Limit{Capacity: 1, LeakRate: 1e12}, false},
		{Limit{Capacity: 1001, LeakRate: 1e12}, true}, {Limit{Capacity: 990, LeakRate: 1e12}, false}, {Limit{Capacity: 1e-9, LeakRate: 1.1}, false},
	} {
		_, err := NewBucket("k", c.limit)
		errorIf(t, (err == nil) != c.ok, "%v: %v, want valid %v", c.limit, err, c.ok)
	}
}

// A rate is rounded by at most a hundred-thousandth, also if a unit leaks in no whole number of nanoseconds.
func TestLimit_RateIsExact(t *testing.T) {
	for _, rate := range []float64{1e-3, 0.7, 3, 61, 1e4 / 3, 1e6 / 7, 3e6, 7e6, 1e8, 3e8, 2e9 / 3, 7e8, 1e9, 3e9, 1e11} {
		synctest.Test(t, func(t *testing.T) {
			// More than a window holds, so that nothing is lost while time passes.
			b := Must(NewBucket("k", Limit{Capacity: 3 * rate, LeakRate: rate}))
			admit(t, b, 3*rate)
			time.Sleep(time.Second)
			refused(t, b, Cost{rate * (1 + 1e-8)})
			admit(t, b, rate*(1-1.1e-5))
		})
	}
}

// Each returns the number and the window that a limit was made with.
func TestLimit_Each(t *testing.T) {
	for _, l := range []struct {
		Limit
		n      float64
		window time.Duration
	}{
		{PerSecond(10), 10, time.Second},
		{Per(900, time.Minute).Burst(5), 900, time.Minute},
		{Window(100, 10*time.Second), 100, 10 * time.Second},
		{FixedWindow(7, time.Hour), 7, time.Hour},
		{Limit{Capacity: 40, LeakRate: 2}, 0, 0},
		{Daily(100, time.UTC), 0, 0},
		{InFlight(5), 0, 0},
	} {
		n, w := l.Each()
		errorIf(t, n != l.n || w != l.window, "%v: %v each %v", l.Limit, n, w)
	}
}

// A call that comes back at RetryAfter is admitted, whatever limits the bucket has, and through holds
// and slow-downs.
func TestBucket_RetryAfterIsEnoughForAllKinds(t *testing.T) {
	all := []Limit{Window(5, time.Second), Window(40, time.Minute), FixedWindow(7, 3*time.Second), FixedWindow(60, 2*time.Minute), Hourly(90),
		Daily(400, pacific), Monthly(5_000, pacific), PerSecond(3), PerMinute(60).Burst(20), {Capacity: 6, LeakRate: 1. / 3}}
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			var limits []Limit
			for range 1 + r.IntN(4) {
				if l := all[r.IntN(len(all))]; !slices.Contains(limits, l) {
					limits = append(limits, l)
				}
			}
			if _, err := checkLimits(nil, "", limits, false); err != nil {
				return
			}
			time.Sleep(time.Duration(r.Int64N(int64(100 * 24 * time.Hour))))
			b := Must(NewBucket("k", limits...))
			for range 200 {
				p, err := b.Acquire(ctx, Cost{float64(r.IntN(3))})
				if full, ok := errors.AsType[*ThrottledError](err); ok {
					time.Sleep(full.RetryAfter)
					if p, err = b.Acquire(ctx, Cost{1}); full.Held || err == nil {
						// A call of another cost, or after a hold.
					} else if errors.As(err, &full); full.RetryAfter > 0 {
						time.Sleep(full.RetryAfter)
						p, err = b.Acquire(ctx, Cost{1})
						fatalIf(t, err != nil, "%v: back after %v: %v", limits, full.RetryAfter, err)
					}
				}
				switch r.IntN(12) {
				case 0:
					p.Settle(Cost{float64(r.IntN(4))})
				case 1:
					p.Refused(time.Duration(r.Int64N(int64(20 * time.Second))))
				case 2:
					must(t, b.Hold(ctx, time.Duration(1+r.Int64N(int64(time.Minute)))))
				case 3:
					time.Sleep(time.Duration(r.ExpFloat64() * float64(10*time.Second)))
				}
				p.Done()
			}
		})
	}
}

// The store's time of day counts, and not the process's. It is learned in one more request.
func TestCalendar_CountsByTheStoresTimeOfDay(t *testing.T) {
	clocked := func(ahead func() time.Duration) *Bucket { // in a store whose clock is ahead of this process's
		var kept store.Stored
		return Must(NewSharedBucket(StoreFunc(func(_ context.Context, _ string, op *store.Op) (store.Reply, error) {
			return op.ApplyAt(&kept, now(), calendar.Stamp(time.Now())+ahead()), nil
		}), "k", Daily(10, time.UTC)))
	}
	for _, ahead := range []time.Duration{0, time.Minute, -time.Minute, 5 * time.Hour, -5 * time.Hour, 72 * time.Hour, -72 * time.Hour, 40 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(12 * time.Hour)
			requests := 0
			b := clocked(func() time.Duration { requests++; return ahead })
			admit(t, b, 10)
			errorIf(t, requests > 2, "ahead %v: the first call takes %d requests", ahead, requests)
			requests = 0
			full := refused(t, b, Cost{1})
			stores := time.Now().Add(ahead).UTC()
			midnight := stores.Truncate(24 * time.Hour).Add(24*time.Hour + store.Slack)
			errorIf(t, full.RetryAfter != midnight.Sub(stores) || requests != 1,
				"ahead %v: %v in %d requests, want %v", ahead, full, requests, midnight.Sub(stores))
			time.Sleep(full.RetryAfter)
			admit(t, b, 10)
			errorIf(t, requests > 2, "ahead %v: after midnight %d requests", ahead, requests)
		})
	}
	ahead := time.Duration(0)
	_, err := clocked(func() time.Duration { ahead += 72 * time.Hour; return ahead }).Acquire(ctx, Cost{1})
	_, bad := errors.AsType[*StoreError](err)
	errorIf(t, !bad || !strings.Contains(err.Error(), "store's clock"), "a clock that runs away: %v", err)
}

// An answer with what remains of a window holds the bucket only if the calls since can have used it up, by the limit
// that admits the fewest.
func TestAnswerRemaining_OfAWindowHoldsWhenLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute)
		m := new(FakeStore)
		b := Must(NewSharedBucket(m, "github", PerSecond(10), Window(5_000, time.Hour), Daily(50_000, time.UTC)))
		for _, c := range []struct {
			left  float64
			trips int64
		}{{4_000, 0}, {30, 0}, {2, 1}, {0, 1}} {
			p := mustAcquire(t, b)
			time.Sleep(200 * time.Millisecond)
			before := m.Requests.Load()
			p.Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{c.left, -1, -1, -1}, Wait: time.Hour})
			equal(t, m.Requests.Load()-before, c.trips, "%v left: trips", c.left)
		}
		s := states(t, b)
		errorIf(t, s[0].HeldFor == 0 || s[0].Reason != "exhausted", "%+v", s[0])
	})
}

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
		if _, err := NewBucket("k", l, l); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `"`+label+`"`) && !l.form.InFlight {
			t.Errorf("%v, twice: %v", l, err)
		}
	}
	_, err := NewBucket("k", PerMinute(1), Window(1, time.Minute), FixedWindow(1, time.Minute))
	errorIf(t, err != nil, "three kinds of one number and length: %v", err)
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
				p := admit(t, o, 1, 1)
				if full := refused(t, o, Cost{1, 1}); full.Limit != label || event != label || !strings.Contains(full.Error(), `is over the limit "`+label+`"`) {
					t.Errorf("%s, %s: %v, event %q", label, name, full, event)
				}
				err := b.Book(ctx, &BookRequest{Costs: []Cost{{1, 1}}})
				full, ok := errors.AsType[*ThrottledError](err)
				errorIf(t, !ok || full.Limit != label, "%s, %s: booked: %v", label, name, err)
				s, _ := b.State(ctx)
				e, err := b.Explain(ctx, Cost{1, 1})
				errorIf(t, err != nil || e.Limit != label || s.Label() != label,
					"%s, %s: %v, state %q", label, name, e, s.Label())
				p.Done()
			}
		}
		b := Must(NewBucket("k", PerHour(1)))
		_, _ = b.Acquire(ctx, Cost{1})
		n := testing.AllocsPerRun(100, func() { _, _ = b.Acquire(ctx, Cost{1}) })
		errorIf(t, n > 1, "a refusal allocates %v times, and not its error alone", n)
	})
}
