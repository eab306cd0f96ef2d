package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A queue explains with the calls that wait before, which the bucket does not know yet, and the call
// then leaves at that time.
func TestExplain_CountsWaitingCalls(t *testing.T) {
	for _, limit := range []outbound.Limit{outbound.PerSecond(10), outbound.Window(3, time.Second), {Capacity: 2, LeakRate: 1}} {
		bothWays(t, []outbound.Limit{limit}, func(t *testing.T, b *outbound.Bucket) {
			q := New(b, Config{})
			e, err := q.Explain(bg, one)
			errorIf(t, err != nil || e.Wait != 0 || e.Because != "" || e.Ahead != 0, "%v, %v", e, err)
			comeAll(20, bg, q, 1)
			e, err = q.Explain(bg, one)
			errorIf(t, err != nil || e.Ahead != q.Len() || e.Ahead < 17 || e.Because != "booked" || !strings.Contains(e.String(), "ahead in"),
				"%v, %v", e, err)
			alone, _ := b.Explain(bg, one)
			errorIf(t, alone.Wait >= e.Wait || alone.Ahead != 0,
				"the bucket explains %v, and the queue %v", alone.Wait, e.Wait)
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
		"a full InFlight":      {[]outbound.Limit{outbound.PerSecond(1), outbound.InFlight(3)}, 0, 500, false, 1, 506 * time.Second, "would wait at least 8m26s, and until a call in progress ends"},
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
				if name == "a full InFlight" {
					for range 3 {
						p := admitted(t, q, 1)
						defer p.Done()
					}
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
				errorIf(t, err != nil || (e.Wait-c.wait).Abs() > c.wait/50 || !strings.Contains(e.String(), c.text),
					"%v, want %v and %q: %v", e.Wait, c.wait, c.text, cmp.Or(err, errors.New(e.String())))
			})
		})
	}
	q := New(bucket(t, outbound.Window(1, 1000*time.Hour)), Config{})
	for _, n := range []int{-1, 0, 1e9 + 1, math.MaxInt} {
		_, err := q.ExplainLast(bg, one, n)
		errorIf(t, !errors.Is(err, outbound.ErrInvalid), "%d calls: %v", n, err)
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
			c := comeIn(t, 15*time.Second, q, 1)
			errorIf(t, c.end.Load() == nil || c.refused().RetryAfter < 20*time.Second, "%s: with 15 s: %v", name, c.ended())
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
		s := q.Stats().String()
		errorIf(t, !strings.Contains(s, "1 waiting, the first for 0s (it leaves at an unknown time), 2 admitted"), "%v", s)
		pass(500 * ms)
		if err := c.ended().err; err == nil || !strings.Contains(err.Error(), "the call waited for 400ms and can no longer meet the deadline: context") {
			t.Error(err)
		}
		pass(time.Second)
		if e, err := q.Explain(bg, one); err != nil || !strings.Contains(e.String(), "2 calls got no answer in the last minute: their deadline came 150ms after the call had left") {
			t.Errorf("%v, %v", e, err)
		}
		pass(time.Minute)
		e, err := q.Explain(bg, one)
		errorIf(t, err != nil || e.Unanswered != 0, "%v, %v", e, err)
		keyed := &outbound.Keyed[string]{Label: strings.ToUpper, New: func(string) (outbound.Limiter, error) { return q, nil }}
		_ = q.Close()
		for want, l := range map[string]outbound.Limiter{`queue: closed: "test"`: q, `queue: closed: "KEY"`: keyed.For("key")} {
			_, err := l.Acquire(bg, one)
			errorIf(t, err == nil || err.Error() != want || !errors.Is(err, ErrClosed), "%v, want %s", err, want)
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

// said is what Explain has of a call, which then comes.
type said struct {
	outbound.Explanation
	*caller
	least time.Duration // what full speed gives
}

// caller is a call that came, and left or gave up.
type caller struct {
	at, left      time.Time
	units         float64
	front, gaveUp bool
}

// fullSpeed returns the shortest time in which so many units leave by a limit at full speed, whatever
// has left before.
func fullSpeed(l outbound.Limit, units float64) time.Duration {
	n, window := l.Each()
	turns := math.Ceil(units/n) - 1
	switch {
	case l.LeakRate == 0:
		return 0
	case window == 0 || l.Capacity != n:
		return time.Duration((units - l.Capacity) / l.LeakRate * 1e9)
	case strings.Contains(l.String(), "in any"):
		return time.Duration(turns) * window
	default: // of a fixed window 2n may leave around its end
		return time.Duration(max(0, turns-1)) * window
	}
}

// explainLine lets calls come at random to a queue by random limits, with refusals, calls in flight, and
// another queue in front. Every 2 s it asks when a call would leave, and makes that call.
func explainLine(t *testing.T, seed uint64) (exact, bounds int) {
	r := rand.New(rand.NewPCG(seed, 43))
	kinds := []outbound.Limit{
		outbound.PerSecond(float64(8 + r.IntN(10))).Burst(3), outbound.Limit{Capacity: float64(3 + r.IntN(9)), LeakRate: 4 + 9*r.Float64(), Name: "leaky"},
		outbound.Window(float64(10+r.IntN(40)), time.Duration(1+r.IntN(6))*time.Second), outbound.FixedWindow(float64(10+r.IntN(40)), time.Duration(1+r.IntN(6))*time.Second),
		outbound.Hourly(float64(50 + r.IntN(500))), outbound.InFlight(1 + r.IntN(20)),
	}
	r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	if kinds = kinds[:1+r.IntN(3)]; kinds[0].LeakRate == 0 && len(kinds) == 1 {
		kinds = append(kinds, outbound.PerSecond(8).Burst(3))
	}
	inStore, alike, inFront, refusals, deadlines := r.IntN(3) == 0, r.IntN(2) == 0, r.IntN(4) == 0, r.IntN(4), r.IntN(3) == 0
	longest := time.Duration(300+2700*(int(seed)%2)) * ms
	what := fmt.Sprintf("seed %d: %v, in a store %v, alike %v, one in front %v, %d refusals, deadlines %v", seed, kinds, inStore, alike, inFront, refusals, deadlines)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour - time.Duration(r.IntN(90))*time.Second)
		var b *outbound.Bucket
		if inStore {
			b = shared(t, store.NewMemory(), kinds...)
		} else {
			b = bucket(t, kinds...)
		}
		front := New(b, Config{CallTime: -1})
		q := front
		if inFront {
			q = New(b, Config{CallTime: -1, Behind: front})
		}
		var mu sync.Mutex
		var refused []time.Time
		var all sync.WaitGroup
		begin := time.Now()
		var calls []*caller
		waits := 0. // the units of the calls without a deadline that wait
		run := func(l *Queue, within time.Duration, cost float64) *caller {
			c, ctx, cancel := &caller{at: time.Now(), front: l != q}, bg, func() {}
			if calls = append(calls, c); within > 0 {
				ctx, cancel = context.WithTimeout(bg, within)
			} else {
				c.units = cost
			}
			mu.Lock()
			waits += c.units
			mu.Unlock()
			took, refuses := time.Duration(r.Int64N(int64(longest))), refusals > 0 && r.IntN(20) == 0
			hold := time.Duration(r.IntN(3000)) * ms
			if refuses {
				refusals--
			}
			all.Go(func() {
				defer cancel()
				p, err := l.Acquire(ctx, outbound.Cost{cost})
				mu.Lock()
				waits -= c.units
				mu.Unlock()
				if c.left, c.gaveUp = time.Now(), err != nil; c.gaveUp { // read after all.Wait
					return
				}
				time.Sleep(took)
				if refuses {
					mu.Lock()
					refused = append(refused, time.Now())
					mu.Unlock()
					p.Refused(hold)
				}
				p.Done()
			})
			synctest.Wait()
			return c
		}
		var answers []*said
		probe := func() {
			cost := 1.
			if !alike {
				cost = float64(1 + r.IntN(3))
			}
			e, err := q.Explain(bg, outbound.Cost{cost})
			if err != nil || e.Err != nil {
				t.Errorf("%s: %v, %v", what, err, e.Err)
				return
			}
			s := &said{Explanation: e}
			mu.Lock()
			units := cost + waits
			mu.Unlock()
			for _, l := range kinds {
				if l.LeakRate > 0 {
					s.least = max(s.least, fullSpeed(l, units))
				}
			}
			s.caller = run(q, 0, cost)
			answers = append(answers, s)
		}
		for range 30 + r.IntN(120) {
			l, within, cost := q, time.Duration(0), 1.
			if inFront && r.IntN(3) == 0 {
				l = front
			}
			if deadlines && r.IntN(2) == 0 {
				within = time.Duration(r.IntN(20_000)) * ms / time.Duration(1+9*r.IntN(2))
			}
			if !alike {
				cost = float64(1 + r.IntN(3))
			}
			run(l, within, cost)
			if r.IntN(4) == 0 {
				time.Sleep(time.Duration(r.IntN(100)) * ms)
			}
			if time.Since(begin) > time.Duration(len(answers))*2*time.Second {
				probe()
			}
		}
		for range 20 {
			if time.Sleep(2 * time.Second); q.Len() == 0 && len(answers) > 3 {
				break
			}
			probe()
		}
		all.Wait()
		for _, s := range answers {
			truth := s.left.Sub(s.at)
			during := func(at time.Time) bool { return !at.Before(s.at) && !at.After(s.left) }
			refusal, calm := s.left, true
			if i := slices.IndexFunc(refused, during); i >= 0 {
				refusal, calm = refused[i], false
			}
			i := slices.Index(calls, s.caller)
			overtaken := slices.ContainsFunc(calls[i:], func(c *caller) bool { return c.front && during(c.at) })
			gaveUp := !calm && slices.ContainsFunc(calls[:i], func(c *caller) bool { return c.gaveUp && !c.left.Before(refusal) && during(c.left) })
			// A hold lets a slow clock catch up, but not run ahead of real time.
			caught := time.Duration(float64(s.left.Sub(refusal)) * (1/s.States[0].Speed - 1))
			say := func(format string, args ...any) {
				t.Errorf("%s: at %v, %d ahead, wait %v, at least %v, truth %v, full speed %v: %s\n%s", what, s.at.Sub(begin), s.Ahead, s.Wait, s.AtLeast, truth, s.least, fmt.Sprintf(format, args...), s)
			}
			switch {
			case s.Wait < 0:
				if s.Because != "in flight" && s.Because != "behind" {
					say("unknown")
				}
			case s.Wait > truth+caught+20*time.Microsecond && !gaveUp:
				say("above the truth")
			case s.AtLeast:
				bounds++
			case calm && !overtaken && truth-s.Wait > truth/20+5*ms:
				say("more than 5 %% below the truth")
			default:
				exact++
			}
			if s.Wait >= 0 && s.Wait < s.least-10*ms {
				say("below what full speed gives")
			}
		}
	})
	return exact, bounds
}

// Every 2 s in random lines, with refusals, calls in flight, a queue in front, windows and calendars: no
// time that Explain has is above the truth, or below what full speed gives. An exact one is within 5 %.
// An answer cannot know what comes later: the next refusal, after which calls ahead miss their
// deadlines and a slow clock may catch up, and calls that come to the queue in front.
func TestExplain_AgainstTheTruth(t *testing.T) {
	n := 25
	if long {
		n = 400
	}
	seeds := []uint64{614, 796, 1158, 1748, 2495, 3131, 23245} // what each kind of calls ahead needs
	for seed := range uint64(n) {
		seeds = append(seeds, seed)
	}
	exact, bounds := 0, 0
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			e, b := explainLine(t, seed)
			exact, bounds = exact+e, bounds+b
		})
	}
	t.Logf("%d times exact, %d at least", exact, bounds)
	errorIf(t, exact < n/2 || bounds < n, "%d times were exact, and %d at least", exact, bounds)
}

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
					p := admitted(t, b, 1)
					p.Done()
				}
				for range of.calls {
					go func() { _, _ = q.Acquire(t.Context(), outbound.Cost{1}) }()
				}
				time.Sleep(10 * time.Second)
				if of.hold > 0 {
					must(t, b.Hold(t.Context(), of.hold))
				}
				e, err := q.Explain(t.Context(), outbound.Cost{1})
				if got := e.States[1].UsedUpIn; err != nil || got < of.want-of.want/30 || got > of.want+of.want/30 {
					t.Errorf("used up in %v, want %v; %v", got, of.want, err)
				}
			})
		})
	}
}
