package queue

import (
	"context"
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
	if exact < n/2 || bounds < n {
		t.Errorf("%d times were exact, and %d at least", exact, bounds)
	}
}
