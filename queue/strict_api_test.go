package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// strict is a strict API, and processes that keep limits which match its rule.
type strict struct {
	limits  []outbound.Limit
	rule    outboundtest.Rule
	skew    time.Duration   // of the API's clock
	ways    []time.Duration // to the store, of each process; nil: one process with a bucket in memory
	callers int             // of each process
	travel  time.Duration   // the longest way of a call to the API
	pause   time.Duration   // of each caller before a call, on average; 0: there is always a next call
	queued  bool            // calls wait in a queue; else they ask a bare bucket
	faults  bool            // replies that come late, as to a process that was stopped, and lost ones
}

func (s strict) String() string {
	return fmt.Sprintf("%v, %v, skew %v, %v away, queued %v, pauses of %v, faults %v", s.limits, s.rule, s.skew, s.ways, s.queued, s.pause, s.faults)
}

// link returns the store as a process sees it that is so far away.
func (s strict) link(m store.Store, way time.Duration) store.Store {
	f := &far{Store: m, way: way, jitter: 0.05}
	if s.faults {
		f.late = func(int) time.Duration {
			switch n := rand.IntN(300); {
			case n == 0:
				return 3 * time.Second
			case n < 10:
				return rand.N(100 * ms)
			}
			return 0
		}
		f.after = func(*store.Op, *store.Reply) error {
			if rand.IntN(100) == 0 {
				return errAway
			}
			return nil
		}
	}
	return f
}

// run lets the callers go for so long. It returns what the API has seen, and the longest that a call has waited after
// its caller had been admitted once.
func (s strict) run(t *testing.T, length time.Duration) (outboundtest.Report, time.Duration) {
	api := &outboundtest.API{Rules: []outboundtest.Rule{s.rule}, Skew: s.skew}
	var longest atomic.Int64
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		m, processes := store.NewMemory(), []*outbound.Bucket{bucket(t, s.limits...)}
		for i, way := range s.ways {
			processes = append(processes[:i], shared(t, s.link(m, way), s.limits...))
		}
		var all sync.WaitGroup
		for w, b := range processes {
			var from outbound.Limiter = b
			if s.queued {
				from = New(b, Config{})
			}
			for c := range s.callers {
				r := rand.New(rand.NewPCG(uint64(w), uint64(c)))
				all.Go(func() {
					for first := true; ctx.Err() == nil; {
						time.Sleep(time.Duration(r.ExpFloat64() * float64(s.pause)))
						asked := time.Now()
						p, err := from.Acquire(ctx, one)
						full, throttled := errors.AsType[*outbound.ThrottledError](err)
						switch {
						case err == nil:
							if !first {
								longest.Store(max(longest.Load(), int64(time.Since(asked))))
							}
							first = false
							time.Sleep(time.Duration(r.Float64() * float64(s.travel)))
							req, _ := http.NewRequest("GET", "http://api.example.com/", nil)
							if res, err := api.RoundTrip(req); err == nil {
								res.Body.Close()
							}
							p.Done()
						case s.queued:
							return // it would not go before the end
						case !throttled:
							time.Sleep(100 * ms)
						case s.pause == 0:
							time.Sleep(full.RetryAfter)
						}
					}
				})
			}
		}
		all.Wait()
		time.Sleep(10 * time.Second)
	})
	return api.Report(), time.Duration(longest.Load())
}

// An API with the same limit refuses no call of a queue.
func TestStrictAPI_RefusesNoCallOfTheSameLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	const n, w, s, travel = 20, 10 * time.Second, time.Second, 5 * ms
	berlin, err := time.LoadLocation("Europe/Berlin")
	must(t, err)
	windows := time.Duration(12)
	if raced {
		windows = 4
	}
	hour := outboundtest.CalendarWindow(n, outboundtest.Hour, time.UTC)
	for _, c := range []struct {
		limit  outbound.Limit
		rule   outboundtest.Rule
		window time.Duration // or the length of a period
		skew   time.Duration
	}{
		{outbound.Window(n, w), outboundtest.SlidingLog(n, w), w, 0},
		{outbound.Window(n, w), outboundtest.FixedWindow(n, w), w, 0},
		{outbound.Window(n, w), outboundtest.FirstCallWindow(n, w), w, 0},
		{outbound.FixedWindow(n, w), outboundtest.FirstCallWindow(n, w), w, 0},
		{outbound.Hourly(n), hour, time.Hour, 0},
		{outbound.Hourly(n), hour, time.Hour, s - 2*travel},
		{outbound.Hourly(n), hour, time.Hour, -s},
		{outbound.Daily(n, berlin), outboundtest.CalendarWindow(n, outboundtest.Day, berlin), 24 * time.Hour, 0},
	} {
		for _, ways := range [][]time.Duration{nil, make([]time.Duration, 10)} {
			if ways != nil && c.window > time.Hour {
				continue // a queue asks every ten seconds whether its reservation stands
			}
			m := strict{limits: []outbound.Limit{c.limit}, rule: c.rule, skew: c.skew, ways: ways, callers: 5, travel: travel}
			nineTenths := c.window * time.Duration(max(1, len(ways))*m.callers) * 10 / 9 / n // of the limit
			for _, m.queued = range []bool{false, true} {
				for _, m.pause = range []time.Duration{0, nineTenths} {
					r, _ := m.run(t, windows*c.window)
					errorIf(t, r.Refused > 0 || r.Admitted < n*int(windows)/2,
						"%v: %d of %d calls refused, and %d of %d admitted", m, r.Refused, r.Arrivals, r.Admitted, n*int(windows))
				}
			}
		}
	}
}

// A Window in a store needs no queue: at most n calls leave in any of its lengths, however far away
// the store is, and however late replies come. A call waits for one round trip more, and the quota
// is used.
func TestBare_WindowHolds(t *testing.T) {
	const n, w = 40, time.Second
	window, log := outbound.Window(n, w), outboundtest.SlidingLog(n, w)
	for _, way := range []time.Duration{ms / 10, 5 * ms / 2, 10 * ms, 50 * ms} {
		if raced && way != 10*ms {
			continue
		}
		all, mixed := []time.Duration{way, way, way, way}, []time.Duration{ms / 10, way, way}
		for _, b := range []strict{
			{limits: []outbound.Limit{window}, rule: log, ways: all},
			{limits: []outbound.Limit{window}, rule: log, ways: mixed},
			{limits: []outbound.Limit{window}, rule: log, ways: mixed, faults: true},
			{limits: []outbound.Limit{window, outbound.PerSecond(100)}, rule: log, ways: mixed, faults: true},
			{limits: []outbound.Limit{outbound.FixedWindow(n, w)}, rule: outboundtest.FirstCallWindow(n, w), ways: mixed, faults: true},
			{limits: []outbound.Limit{outbound.Hourly(n)}, rule: outboundtest.CalendarWindow(n, outboundtest.Hour, time.UTC), ways: mixed, faults: true},
		} {
			t.Run(b.String(), func(t *testing.T) {
				length, every, part := time.Minute, w+10*ms, 0.95 // of what leaves if a round trip separates two windows
				if b.limits[0] == outbound.Hourly(n) {
					length, every = 5*time.Hour, time.Hour
				}
				if b.faults {
					part = 0.85
				}
				b.callers = 10
				r, longest := b.run(t, length)
				if want := part * n * float64(length) / float64(every+2*way); r.Refused > 0 || float64(r.Admitted) < want {
					t.Errorf("%d calls too many; %d were admitted, want %.0f", r.Refused, r.Admitted, want)
				}
				most := 4*way + 2*ms
				if len(b.ways) == 3 {
					most = 10*way + 2*ms // it asks again if a call from farther away is booked before it
				}
				errorIf(t, !b.faults && longest > most, "a call has waited %v, want %v", longest, most)
			})
		}
	}
}

// A call whose ctx ends while it waits for its time goes back, and nothing stays charged.
func TestBare_EndedCtxReturnsTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := shared(t, &far{Store: store.NewMemory(), way: 50 * ms, jitter: 0.5}, outbound.Window(1000, time.Hour))
		admitted, ended := 0., 0
		for i := range 200 {
			ctx, cancel := context.WithTimeout(bg, 60*ms+time.Duration(i)*ms/2)
			switch _, err := k.Acquire(ctx, one); {
			case err == nil:
				admitted++
			case errors.Is(err, context.DeadlineExceeded):
				ended++
			default:
				t.Fatal(err)
			}
			cancel()
		}
		pass(time.Second) // what was given back has arrived
		states, err := k.States(bg)
		errorIf(t, err != nil || states[0].Level != admitted || ended < 20 || admitted < 20,
			"%v are charged, %v were admitted, %d ended, %v", states, admitted, ended, err)
	})
}

// simulation is random traffic through queues around one bucket, with cancels, deadlines,
// settles, calls that do not wait, holds, refusals, pauses of the process and new limits.
// Whatever happens, no more units leave than the limits allow.
type simulation struct {
	t      *testing.T
	rnd    *rand.Rand
	b      *outbound.Bucket
	queues []*Queue
	limits []outbound.Limit
	sent   [2]outboundtest.History // what left, by unit
}

func (s *simulation) call(ctx context.Context, l outbound.Limiter, c outbound.Cost, used outbound.Cost, hold time.Duration) {
	p, err := l.Acquire(ctx, c)
	if err != nil {
		errorIf(s.t, !errors.Is(err, outbound.ErrThrottled) && !errors.Is(err, ctx.Err()), "%v", err)
		return
	}
	now := time.Now()
	for i := range s.sent {
		s.sent[i].Add(now, used[i])
	}
	time.Sleep(hold)
	if used != c {
		p.Settle(used)
	}
	p.Done()
}

// run lets n calls come, faster than the limits admit them.
func (s *simulation) run(n int) {
	for range n {
		q := s.queues[s.rnd.IntN(len(s.queues))]
		c := outbound.Cost{1, float64(s.rnd.IntN(5))}
		used := c
		if s.rnd.IntN(3) == 0 {
			used[1] = float64(s.rnd.IntN(int(c[1]) + 1))
		}
		ctx, cancel := context.WithCancel(bg)
		if s.rnd.IntN(10) == 0 {
			ctx, cancel = context.WithTimeout(bg, time.Duration(s.rnd.Int64N(int64(10*time.Second))))
		}
		hold := time.Duration(s.rnd.Int64N(int64(500 * time.Millisecond)))
		go func() {
			s.call(ctx, q, c, used, hold)
			cancel()
		}()
		synctest.Wait()
		switch {
		case q.Len() > 50:
			time.Sleep(time.Duration(s.rnd.Float64() * 2 / s.limits[0].LeakRate * float64(time.Second)))
		case s.rnd.IntN(20) == 0:
			time.Sleep(time.Duration(s.rnd.Int64N(int64(200 * time.Millisecond))))
			cancel()
		}
		s.disturb(q)
	}
}

func (s *simulation) disturb(q *Queue) {
	switch s.rnd.IntN(400) {
	case 0:
		s.b.Hold(bg, time.Duration(s.rnd.Int64N(int64(5*time.Second)))+1)
	case 1:
		pause(q, time.Duration(s.rnd.Int64N(int64(2*time.Second))))
	case 2:
		go s.call(bg, s.b, outbound.Cost{1, 1}, outbound.Cost{1, 1}, 0) // a call that does not wait
	case 3:
		if p, err := s.b.Acquire(bg, outbound.Cost{1}); err == nil {
			s.sent[0].Add(time.Now(), 1)
			p.Refused(time.Duration(s.rnd.Int64N(int64(3 * time.Second))))
			p.Done()
		}
	case 4:
		s.b.SetLimits(bg, s.limits...)
	case 5:
		time.Sleep(30 * time.Second)
	}
}

// Random traffic keeps the limits, and leaves nothing behind.
func TestSimulation_KeepsTheLimits(t *testing.T) {
	seeds, calls := uint64(9), 2000
	switch {
	case raced || testing.Short():
		seeds = 3
	case long:
		seeds, calls = 36, 20_000
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			rate := []float64{0.02, 2, 200}[seed%3] // a test then lasts from a hundred hours to half a minute
			limits := []outbound.Limit{
				{Capacity: float64(1 + seed%4), LeakRate: rate, Name: "calls"},
				{Capacity: 10, LeakRate: 2.5 * rate, Unit: 1, Name: "units"},
			}
			s := &simulation{t: t, rnd: rand.New(rand.NewPCG(seed, 7)), limits: limits}
			if s.b = bucket(t, limits...); seed%2 == 1 {
				s.b = shared(t, store.NewMemory(), limits...)
			}
			for range 1 + seed/3 {
				s.queues = append(s.queues, New(s.b, Config{}))
			}
			s.run(calls)
			pass(10 * time.Hour)
			late := 0.05 // the largest tolerance
			for i, l := range limits {
				err := s.sent[i].Check(l.Capacity, l.LeakRate, late*l.LeakRate)
				errorIf(t, err != nil, "seed %d, %s: %v", seed, l.Name, err)
			}
			for _, q := range s.queues {
				if s, err := s.b.State(bg); q.Len() != 0 || s.Level != 0 || err != nil {
					t.Errorf("seed %d: %d wait, level %v, %v", seed, q.Len(), s.Level, err)
				}
			}
			t.Logf("seed %d: %d calls left in %v", seed, s.sent[0].Len(), s.sent[0].Total().End.Sub(s.sent[0].Total().Start))
		})
	}
}
