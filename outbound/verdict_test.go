package outbound

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// traffic lets calls come at random, 15 per second, to an API that lets perSecond leak, and returns
// how many that has refused.
func traffic(t *testing.T, s Limiter, perSecond float64) (refused int) {
	api, rnd := Must(NewBucket("api", Limit{Capacity: 5, LeakRate: perSecond})), rand.New(rand.NewPCG(1, 18))
	for range 600 {
		time.Sleep(time.Duration(rnd.ExpFloat64() * float64(time.Second) / 15))
		if _, err := api.Acquire(ctx, Cost{1}); err != nil {
			shadowCall(t, s, Cost{1}, refusal)
			refused++
			continue
		}
		shadowCall(t, s, Cost{1})
	}
	return refused
}

// An API's refusals of calls that nobody paces prove that a limit is too high only if that would have
// let them all go.
func TestAFindingIsWhatIsProved(t *testing.T) {
	for _, c := range []struct {
		ours, api float64
		want      Finding
	}{
		{5, 10, FindingNone},
		{10, 10, FindingNone},
		{20, 10, FindingTooHigh},
		{10, 100, FindingTooLow},
		{20, 100, FindingNone},
	} {
		for _, independent := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				var told verdicts
				s := Shadow(Must(NewBucket("key", Limit{Capacity: 1, LeakRate: c.ours})), ShadowConfig{MaxWait: 5 * time.Second, Independent: independent}, told.report)
				refused := traffic(t, s, c.api)
				want := c.want
				if !independent { // who has waited comes again later
					want = FindingNone
				}
				if got := told.last().Finding; got != want || (c.api < 15) != (refused > 0) {
					t.Errorf("ours %v, the API's %v, independent %v: %v, want %v; the API has refused %d", c.ours, c.api, independent, got, want, refused)
				}
			})
		}
	}
}

func TestWhatSpoilsAFinding(t *testing.T) {
	slowly := func() { time.Sleep(time.Second) } // as the limit allows
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name string
			do   func(s Limiter)
			want Finding
		}{
			{"refused at once", func(s Limiter) { shadowCall(t, s, Cost{1}, refusal) }, FindingTooHigh},
			{"refused twice", func(s Limiter) { shadowCall(t, s, Cost{1}, refusal, refusal) }, FindingTooHigh},
			{"too many at once", func(s Limiter) {
				shadowCall(t, s, Cost{1}, Answer{Kind: AnswerRefused, Reason: ReasonConcurrency})
			}, FindingNone},
			{"refused, and would have waited", func(s Limiter) { shadowCall(t, s, Cost{1}); shadowCall(t, s, Cost{1}, refusal) }, FindingNone},
			{"refused late", func(s Limiter) {
				p, _ := s.Acquire(ctx, Cost{1})
				p.Done()
				p.Answered(refusal)
				slowly()
				shadowCall(t, s, Cost{1})
			}, FindingTooHigh},
			{"unknown", func(s Limiter) {
				shadowCall(t, s, Cost{nan})
				slowly()
				shadowCall(t, s, Cost{1}, refusal)
			}, FindingNone},
			{"too large, and taken", func(s Limiter) { shadowCall(t, s, Cost{2}) }, FindingTooLow},
			{"too large, and no answer", func(s Limiter) { shadowCall(t, s, Cost{2}, Answer{}) }, FindingNone},
			{"too large, and never gone", func(s Limiter) {
				p, _ := s.Acquire(ctx, Cost{2})
				p.Settle(Cost{})
				p.Done()
			}, FindingNone},
			{"too large, and another refused", func(s Limiter) { shadowCall(t, s, Cost{2}); shadowCall(t, s, Cost{1}, refusal) }, FindingNone},
		} {
			var told verdicts
			s := Shadow(Must(NewBucket("key", PerSecond(2))), ShadowConfig{Independent: true}, told.report)
			c.do(s)
			if got := told.last().Finding; got != c.want {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
		}
	})
}

func TestDemandIsThatOfTheBusiestLimitAndForgets(t *testing.T) {
	for _, c := range []struct {
		limits []Limit
		gap    time.Duration
		cost   Cost
		want   float64
	}{
		{[]Limit{{Capacity: 1, LeakRate: 10}}, 50 * time.Millisecond, Cost{1}, 2},
		{[]Limit{{Capacity: 100, LeakRate: 10}, {Capacity: 5000, LeakRate: 10, Unit: 1}}, time.Second, Cost{1, 30}, 3},
		{[]Limit{Window(60, time.Hour)}, 30 * time.Second, Cost{1}, 2},
		{[]Limit{Daily(240, time.UTC)}, 12 * time.Minute, Cost{1}, 0.5},
		{[]Limit{Monthly(730.5, time.UTC)}, time.Hour, Cost{2}, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			var d demand
			b := Must(NewBucket("key", c.limits...))
			f, got := b.slowPath().force.Load(), 0.0
			add := func(gap time.Duration) {
				for range 5000 {
					got = d.add(f, &c.cost, time.Now())
					time.Sleep(gap)
				}
			}
			for _, slower := range []float64{1, 2} {
				add(time.Duration(float64(c.gap) * slower))
				if want := c.want / slower; got < 0.97*want || got > 1.1*want {
					t.Errorf("%v: %v, want %v", c.limits, got, want)
				}
			}
			if d.add(&inForce{limitSet: f.limitSet}, &c.cost, time.Now()); d.asked[0] != c.cost[0] {
				t.Errorf("%v: %v units under other limits", c.limits, d.asked[0])
			}
		})
	}
}

func TestAVerdictInWords(t *testing.T) {
	full := &ThrottledError{Key: "key", RetryAfter: time.Second}
	for want, v := range map[string]Verdict{
		"demand 1.6 times the limit": {Wait: -1, Demand: 1.5999},
		"would go now; demand 0.25 times the limit; refused by the API; the limit is too high": {Demand: 0.25, Refused: true, Finding: FindingTooHigh},
		"would wait 480ms; demand 1.6 times the limit":                                         {Wait: 480*time.Millisecond + 12, Demand: 1.6},
		full.Error() + "; demand 2 times the limit; the limit is too low":                      {Err: full, Demand: 2, Finding: FindingTooLow},
	} {
		if got := v.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := Finding(9).String(); strings.Contains(got, "too") || got == "" {
		t.Errorf("%q", got)
	}
}

// A call that would have been refused has gone and may have taken the room that a later call lacks,
// whether or not it has ended.
func TestACallInProgressSpoilsAFinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			before Cost // the call that is in progress
			want   Finding
		}{
			"it would have gone":         {Cost{}, FindingTooHigh},
			"it would have been refused": {Cost{2}, FindingNone},
			"nobody knows":               {Cost{nan}, FindingNone},
		} {
			var told verdicts
			s := Shadow(Must(NewBucket("key", PerSecond(2))), ShadowConfig{Independent: true}, told.report)
			p, _ := s.Acquire(ctx, c.before)
			shadowCall(t, s, Cost{1}, refusal)
			if got := told.last().Finding; got != c.want {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
			p.Done()
			if n := told.len(); n != 2 {
				t.Errorf("%s: %d verdicts, want 2", name, n)
			}
		}
	})
}
