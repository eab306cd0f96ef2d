package queue

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A queue explains with the calls that wait before, which the bucket does not know yet, and the call
// then leaves at that time.
func TestExplain_CountsWaitingCalls(t *testing.T) {
	for _, limit := range []outbound.Limit{outbound.PerSecond(10), outbound.Window(3, time.Second), {Capacity: 2, LeakRate: 1}} {
		bothWays(t, []outbound.Limit{limit}, func(t *testing.T, b *outbound.Bucket) {
			q := New(b, Config{})
			e, err := q.Explain(bg, one)
			if err != nil || e.Wait != 0 || e.Because != "" || e.Ahead != 0 {
				t.Errorf("%v, %v", e, err)
			}
			comeAll(20, bg, q, 1)
			e, err = q.Explain(bg, one)
			if err != nil || e.Ahead != q.Len() || e.Ahead < 17 || e.Because != "booked" || !strings.Contains(e.String(), "ahead in") {
				t.Errorf("%v, %v", e, err)
			}
			alone, _ := b.Explain(bg, one)
			if alone.Wait >= e.Wait || alone.Ahead != 0 {
				t.Errorf("the bucket explains %v, and the queue %v", alone.Wait, e.Wait)
			}
			begin := time.Now()
			admitted(t, q, 1)
			if took := time.Since(begin); took < e.Wait || limit.Capacity < 3 && took > e.Wait+50*ms {
				t.Errorf("%v: left after %v, and Explain has %v", limit, took, e.Wait)
			}
		})
	}
}

// However many calls wait, and whether or not they have deadlines, Explain has the time of a call that
// would come then.
func TestExplain_CountsThousandsOfWaitingCalls(t *testing.T) {
	for name, within := range map[string]time.Duration{"without deadlines": 0, "with deadlines": time.Hour, "with deadlines that half of them miss": 155 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 10}), Config{})
			ctx, cancel := context.WithCancel(bg)
			defer synctest.Wait()
			defer cancel()
			for i := range 3001 {
				ctx := ctx
				if i > 100 && within > 0 {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, within)
					defer stop()
				}
				come(ctx, q, 1)
			}
			want := time.Duration(q.Len()) * time.Second / 10
			for range 3 {
				if e, err := q.Explain(bg, one); err != nil || e.Ahead != q.Len() || (e.Wait-want-time.Second/10).Abs() > time.Second/10 {
					t.Errorf("%s: %v, %v, want %v", name, e, err, want)
				}
			}
		})
	}
}

// Explain has the time behind all that wait, says whether it is exact, and names the longest cause.
func TestExplain_SaysWhatItKnows(t *testing.T) {
	day := outbound.Daily(100, time.UTC)
	for name, c := range map[string]struct {
		limits     []outbound.Limit
		front, own int // calls that wait, those in front from the beginning
		refuse     bool
		calls      int
		wait       time.Duration // within 2 %
		text       string
	}{
		"one limit":            {[]outbound.Limit{outbound.PerSecond(10)}, 0, 122, false, 1, 12322 * ms, "would wait 12.3"},
		"after a 429":          {[]outbound.Limit{outbound.Window(50, 5*time.Second)}, 0, 500, true, 1, 51250 * ms, "would wait 51"},
		"beside InFlight":      {[]outbound.Limit{outbound.PerSecond(10), outbound.InFlight(5)}, 0, 126, false, 1, 12726 * ms, "would wait at least 12.7"},
		"a queue in front":     {[]outbound.Limit{outbound.PerSecond(10)}, 60, 30, false, 1, 9092 * ms, "would wait at least 9.09s for 59 calls in the queue in front"},
		"the last of 4,000":    {[]outbound.Limit{outbound.PerSecond(10)}, 0, 0, false, 4000, 3999 * 101 * ms, "the last of 4000 calls would wait 6m44s for limit \"10 per 1s\""},
		"the last behind some": {[]outbound.Limit{outbound.PerSecond(10)}, 0, 11, false, 90, 100 * 101 * ms, "the last of 90 calls would wait 10.1s for 10 calls ahead"},
		"the quota of the day": {[]outbound.Limit{outbound.PerSecond(10).Burst(10), day}, 0, 300, false, 1, 12*time.Hour - 19*time.Second, "would wait at least 11h59m41s for limit \"100 per day UTC\"\n  271 ahead"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(12 * time.Hour)
				b := bucket(t, c.limits...)
				ctx, cancel := context.WithCancel(bg)
				defer synctest.Wait()
				defer cancel()
				users := New(b, Config{})
				q := New(b, Config{})
				if c.front > 0 {
					q = New(b, Config{Behind: users})
				}
				var permit outbound.Permit
				if c.refuse {
					permit = admitted(t, q, 1)
				}
				for range c.front {
					come(ctx, users, 1)
				}
				for range c.own {
					come(ctx, q, 1)
				}
				if c.refuse {
					permit.Refused(time.Second)
					synctest.Wait()
				}
				if name == "the quota of the day" { // of which all have left
					pass(20 * time.Second)
				}
				e, err := q.ExplainLast(ctx, one, c.calls)
				if err != nil || (e.Wait-c.wait).Abs() > c.wait/50 || !strings.Contains(e.String(), c.text) {
					t.Errorf("%v, want %v and %q: %v", e.Wait, c.wait, c.text, cmp.Or(err, errors.New(e.String())))
				}
			})
		})
	}
	q := New(bucket(t, outbound.Window(1, 1000*time.Hour)), Config{})
	for _, n := range []int{-1, 0, 1e9 + 1, math.MaxInt} {
		if _, err := q.ExplainLast(bg, one, n); !errors.Is(err, outbound.ErrInvalid) {
			t.Errorf("%d calls: %v", n, err)
		}
	}
	if e, err := q.ExplainLast(bg, one, 1e9); err != nil || !e.AtLeast || e.Wait < 100*365*24*time.Hour { // no Duration is as long
		t.Errorf("%v, at least %v: %v", e.Wait, e.AtLeast, err)
	}
}

// A call that cannot leave in time is refused when it comes: after a 429, beside an InFlight and behind
// another queue, too.
func TestExplain_BoundsRefuseEarly(t *testing.T) {
	for name, limits := range map[string][]outbound.Limit{
		"after a 429":     {outbound.Window(50, 5*time.Second)},
		"beside InFlight": {outbound.PerSecond(10), outbound.InFlight(5)},
		"with deadlines":  {outbound.Window(50, 5*time.Second)},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(bg)
			defer synctest.Wait()
			defer cancel()
			q := New(bucket(t, limits...), Config{CallTime: -1})
			p := admitted(t, q, 1)
			for range 290 {
				ahead, stop := ctx, context.CancelFunc(func() {})
				if name == "with deadlines" {
					ahead, stop = context.WithTimeout(ctx, time.Hour)
				}
				defer stop()
				come(ahead, q, 1)
			}
			p.Refused(time.Second)
			pass(2 * time.Second)
			if c := comeIn(t, 15*time.Second, q, 1); c.end.Load() == nil || c.refused().RetryAfter < 20*time.Second {
				t.Errorf("%s: with 15 s: %v", name, c.ended())
			}
		})
	}
}

// Errors, statistics and explanations say in words what has happened to a call.
func TestQueue_SaysWhatHasHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.PerSecond(10), outbound.InFlight(2))
		q := New(b, Config{CallTime: -1})
		ctx, cancel := context.WithTimeout(bg, 200*ms)
		defer cancel()
		for range 2 {
			go func() {
				p, err := q.Acquire(ctx, one)
				if err == nil {
					time.Sleep(time.Second)
					p.Done()
				}
			}()
		}
		pass(150 * ms)
		c := comeIn(t, 400*ms, q, 1)
		if s := q.Stats().String(); !strings.Contains(s, "1 waiting, the first for 0s (it leaves at an unknown time), 2 admitted") {
			t.Error(s)
		}
		pass(500 * ms)
		if err := c.ended().err; err == nil || !strings.Contains(err.Error(), "the call waited for 400ms and can no longer meet the deadline: context") {
			t.Error(err)
		}
		pass(time.Second)
		if e, err := q.Explain(bg, one); err != nil || !strings.Contains(e.String(), "2 calls got no answer in the last minute: their deadline came 150ms after the call had left") {
			t.Errorf("%v, %v", e, err)
		}
		pass(time.Minute)
		if e, err := q.Explain(bg, one); err != nil || e.Unanswered != 0 {
			t.Errorf("%v, %v", e, err)
		}
		keyed := &outbound.Keyed[string]{Label: strings.ToUpper, New: func(string) (outbound.Limiter, error) { return q, nil }}
		_ = q.Close()
		for want, l := range map[string]outbound.Limiter{`queue: closed: "test"`: q, `queue: closed: "KEY"`: keyed.For("key")} {
			if _, err := l.Acquire(bg, one); err == nil || err.Error() != want || !errors.Is(err, ErrClosed) {
				t.Errorf("%v, want %s", err, want)
			}
		}
	})
}

// Calls ahead that may give up count only until then: what they leave unused is there for those behind.
func TestExplain_CallsAheadMayGiveUp(t *testing.T) {
	for _, within := range []time.Duration{25 * time.Second, 0} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1}, outbound.InFlight(1)), Config{CallTime: -1})
			p := admitted(t, q, 10)
			time.AfterFunc(25500*ms, func() { p.Done() })
			for range 24 {
				ctx := bg
				if within > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(bg, within)
					defer cancel()
				}
				comeAndUse(ctx, q, done, 1)
			}
			var last *call
			for range 10 {
				last = comeAndUse(bg, q, done, 1)
			}
			e, err := q.Explain(bg, one)
			pass(time.Minute)
			if want := map[bool]time.Duration{true: 25 * time.Second, false: 35 * time.Second}[within > 0]; err != nil || e.Wait != want || !e.AtLeast || within > 0 && last.took() > 35*time.Second {
				t.Errorf("%v, %v: want at least %v; the last left after %v", e, err, want, last.took())
			}
		})
	}
}
