package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// sharing is a number of queues around one bucket of which many units open at one time. Calls wait in
// all of them, but for the first: few calls come to it, one by one.
type sharing struct {
	limits  []outbound.Limit
	n       float64 // units that open
	window  time.Duration
	queues  int
	weights []float64       // of the queues in turn
	trips   []time.Duration // there and back, of the queues in turn; nil: all are in one process
	few     int             // calls of the first queue in each window; 0: it is as the others
	windows int
	sliding bool // at most n in any interval of a window
}

func (s *sharing) String() string {
	return fmt.Sprintf("%v, %d queues of weights %v, %v away, %d few", s.limits, s.queues, s.weights, s.trips, s.few)
}

// departure is a call of a queue that has left.
type departure struct {
	at    time.Duration
	queue int
}

// run returns the departures, in order, the longest wait of a call of the few, and the requests.
func (s *sharing) run(t *testing.T) (left []departure, longest time.Duration, requests int64) {
	t.Helper()
	var sent outboundtest.History
	synctest.Test(t, func(t *testing.T) {
		m, b := store.NewMemory(), bucket(t, s.limits...)
		ctx, cancel := context.WithCancel(bg)
		begin := time.Now()
		var mu sync.Mutex
		leaves := func(queue int) {
			mu.Lock()
			defer mu.Unlock()
			left = append(left, departure{time.Since(begin), queue})
			sent.Add(time.Now(), 1)
		}
		var stores []*far
		var few *Queue
		for i := range s.queues {
			if s.trips != nil {
				stores = append(stores, &far{Store: m, way: s.trips[i%len(s.trips)] / 2, jitter: 0.05})
				b = shared(t, stores[i], s.limits...)
			}
			q := New(b, Config{Weight: s.weights[i%len(s.weights)]})
			if s.few > 0 && i == 0 {
				few = q
				continue
			}
			loop(t, ctx, q, 10+int(2*s.n*s.weights[i%len(s.weights)]/s.sum()), func(*outbound.Permit) { leaves(i) })
		}
		for range s.windows * s.few {
			time.Sleep(s.window / time.Duration(s.few))
			go func() {
				came := time.Now()
				if p, err := few.Acquire(ctx, one); err == nil {
					leaves(0)
					mu.Lock()
					longest = max(longest, time.Since(came))
					mu.Unlock()
					p.Done()
				}
			}()
		}
		pass(time.Duration(s.windows)*s.window*201/200 - time.Since(begin))
		cancel()
		for i := range stores {
			requests += stores[i].trips.Load()
		}
		pass(5 * time.Minute) // the last replies
	})
	if s.sliding {
		err := sent.CheckWindow(s.n, s.window)
		errorIf(t, err != nil, "%v: %v", s, err)
	}
	return left, longest, requests
}

// inWindows returns how many calls of each queue have left in each window: in one that begins with
// the first call after the last one.
func (s *sharing) inWindows(left []departure) (all [][]float64) {
	begin := -s.window
	for _, d := range left {
		if d.at-begin > s.window*9/10 {
			begin = d.at
			all = append(all, make([]float64, s.queues))
		}
		all[len(all)-1][d.queue]++
	}
	return all
}

// Of what opens at one time each queue with a backlog gets its share by weight, in each window, within
// 10 % or 2 calls. A queue with fewer calls than its share gets all of them.
func TestShares_EachWindowByWeight(t *testing.T) {
	windows, numbers, weights := 10, []int{3, 10}, [][]float64{{1, 2, 9}}
	if long {
		windows, numbers, weights = 50, []int{2, 3, 10}, [][]float64{{1}, {1, 2, 9}}
	}
	minute := outbound.Window(100, time.Minute)
	kinds := []sharing{
		{limits: []outbound.Limit{minute}, n: 100, window: time.Minute, sliding: true},
		{limits: []outbound.Limit{outbound.Window(100, time.Second)}, n: 100, window: time.Second, sliding: true},
		{limits: []outbound.Limit{outbound.FixedWindow(100, time.Minute)}, n: 100, window: time.Minute},
		{limits: []outbound.Limit{minute, outbound.PerSecond(1000).Burst(100), outbound.Daily(1e6, time.UTC)}, n: 100, window: time.Minute, sliding: true},
		{limits: []outbound.Limit{outbound.Hourly(100)}, n: 100, window: time.Hour},
	}
	if long {
		kinds = append(kinds,
			sharing{limits: []outbound.Limit{outbound.Window(1000, 10*time.Second)}, n: 1000, window: 10 * time.Second, sliding: true},
			sharing{limits: []outbound.Limit{outbound.Window(10, time.Second)}, n: 10, window: time.Second, sliding: true},
			sharing{limits: []outbound.Limit{outbound.FixedWindow(100, time.Second)}, n: 100, window: time.Second},
			sharing{limits: []outbound.Limit{outbound.Daily(100, time.UTC)}, n: 100, window: day},
			sharing{limits: []outbound.Limit{outbound.Monthly(300, time.UTC)}, n: 300, window: 30 * day})
	}
	for _, s := range kinds {
		for _, s.queues = range numbers {
			for _, s.weights = range weights {
				for _, s.trips = range [][]time.Duration{nil, {ms / 5, 20 * ms}} {
					for _, part := range []float64{0, 0.7} { // of its share
						s.few, s.windows = int(math.Ceil(s.n*part/s.sum())), windows
						if s.window >= time.Hour && (!long || s.window >= day) {
							s.windows = 6 // each queue asks each 10 s
						}
						if raced && (s.window >= time.Hour || s.queues > 3 && s.trips == nil) || s.trips != nil && s.few > 0 && s.window < 10*time.Second {
							continue // or a request takes too much of a window to learn what the few leave
						}
						s.test(t)
					}
				}
			}
		}
	}
}

// sum returns the sum of the weights, where that of the first is 1.
func (s *sharing) sum() (sum float64) {
	for i := range s.queues {
		sum += s.weights[i%len(s.weights)]
	}
	return sum
}

// test checks the shares from the fourth window on: in the first, the first queue finds capacity.
func (s *sharing) test(t *testing.T) {
	left, longest, requests := s.run(t)
	all := s.inWindows(left)
	for k, w := range all[min(len(all), 3):max(3, len(all)-1)] {
		used, others := 0., s.sum()
		if s.few > 0 {
			others -= s.weights[0]
		}
		for i, n := range w {
			used += n
			want := s.n * s.weights[i%len(s.weights)] / s.sum()
			wrong := math.Abs(n-want) > max(2, want/10)
			if s.few > 0 { // its calls come at any time, and the others share the rest, less exactly
				rest := (s.n - w[0]) * s.weights[i%len(s.weights)] / others
				wrong = i > 0 && (n < want-max(2, want/10) || math.Abs(n-rest) > max(3, rest/4))
			}
			errorIf(t, wrong, "%v: in window %d queue %d has %v calls, want %.1f: %v", s, k+3, i, n, want, w)
		}
		errorIf(t, used < s.n-1, "%v: %v calls in window %d", s, used, k+3)
	}
	each := float64(requests) / float64(len(left))
	t.Logf("%v: %d windows, %.3f requests a call, the few wait %v", s, len(all), each, longest)
	// Without shares, 2, 3 and 10 queues around 100 calls a minute make 0.14, 0.21 and 0.63.
	errorIf(t, len(all) < s.windows || longest > s.window+s.window/20 || s.window == time.Minute && each > 0.14+0.07*float64(s.queues),
		"%v: %d windows, %.3f requests a call, a call of the few waits %v", s, len(all), each, longest)
}

// While calls wait in two queues of each process, the queues share the bucket by their weights, and
// use all of it. A queue that is alone has the whole rate.
func TestWeight_QueuesShareABucket(t *testing.T) {
	for _, f := range []struct {
		processes int
		way       time.Duration // to the store and back
		rate      float64
		counted   time.Duration
	}{
		{processes: 1, rate: 1, counted: time.Minute},
		{processes: 1, rate: 10, counted: time.Minute},
		{processes: 1, rate: 1000, counted: time.Minute},
		// Ten queues of weight 9 and ten of weight 1 have a round of 100 calls.
		{processes: 10, way: ms, rate: 1, counted: 20 * time.Minute},
		{processes: 10, way: ms, rate: 10, counted: 2 * time.Minute},
		{processes: 10, way: ms, rate: 1000, counted: time.Minute},
		{processes: 10, way: 10 * ms, rate: 10, counted: 2 * time.Minute},
		{processes: 10, way: 10 * ms, rate: 1000, counted: time.Minute},
	} {
		for _, weights := range [][2]float64{{9, 0}, {1, 1.0 / 9}, {50, 0}} {
			if raced && (f.rate == 1000 || f.way == ms) || weights[0] == 50 && (f.processes > 1 || f.rate == 1) {
				continue // a round of 51 calls is long
			}
			want := weights[0] / (weights[0] + cmp.Or(weights[1], 1))
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(bg)
				alone, stop := context.WithCancel(bg)
				m, limit := store.NewMemory(), outbound.Per(f.rate, time.Second)
				b := bucket(t, limit)
				var users, batch []*atomic.Int64
				for range f.processes {
					if f.way > 0 {
						b = shared(t, &far{Store: m, way: f.way, jitter: 0.05}, limit)
					}
					users = append(users, loop(t, ctx, New(b, Config{Weight: weights[0]}), 60, nil))
					batch = append(batch, loop(t, alone, New(b, Config{Weight: weights[1]}), 40, nil))
				}
				count := func(length time.Duration) (u, b float64) {
					for _, sign := range []float64{-1, 1} {
						for i := range users {
							u, b = u+sign*float64(users[i].Load()), b+sign*float64(batch[i].Load())
						}
						if sign < 0 {
							pass(length)
						}
					}
					return u, b
				}
				count(time.Duration(20*f.processes) * time.Second * 10 / time.Duration(min(f.rate, 10)))
				u, b2 := count(f.counted)
				whole := f.rate * f.counted.Seconds()
				if share, use := u/(u+b2), (u+b2)/whole; math.Abs(share-want) > (1-want)*0.1 || use < 0.97 {
					t.Errorf("%+v, weights %v: %v and %v calls, %.3f of the rate", f, weights, u, b2, use)
				}
				cancel()
				count(time.Duration(600/min(f.rate, 100)) * time.Second) // reservations of the first pass
				u, b2 = count(10 * time.Second)
				errorIf(t, u > 0 || b2 < f.rate*10*0.9, "%+v, weights %v, alone: %v and %v calls", f, weights, u, b2)
				stop()
				pass(time.Second)
			})
		}
	}
}

// A tenant with 10,000 calls delays none of 999 others with the same weight: while these use their
// shares, their waits are as without it.
func TestWeight_BacklogOfATenantDelaysNoOther(t *testing.T) {
	notRaced(t)
	const backlog, seconds = 10_000, 60.
	p95 := func(backlog int, load float64) (wait time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			const rate, tenants = 100, 999
			b := bucket(t, outbound.PerSecond(rate))
			queues := &outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) { return New(b, Config{}), nil }}
			ctx, cancel := context.WithCancel(bg)
			for range backlog {
				comeAndUse(ctx, queues.For(0), done, 1)
			}
			r, all := rand.New(rand.NewPCG(3, 4)), make(calls, int(load*rate*seconds))
			for i := range all {
				time.Sleep(time.Duration(r.ExpFloat64() * float64(time.Second) / rate / load))
				all[i] = comeAndUse(ctx, queues.For(1+r.IntN(tenants)), done, 1)
			}
			cancel()
			synctest.Wait()
			wait = all.p95()
		})
		return wait
	}
	for load, bound := range map[float64]func(without time.Duration) time.Duration{
		1.5: func(d time.Duration) time.Duration { return d * 102 / 100 },
		// The tenant uses what the others leave. A call waits for what is booked when it comes, with
		// one call of the tenant, which books its next when that has left: 57 ms without any lateness.
		// If the tenant only had what no other call waits for, it would be 26 ms, because the bucket is
		// never empty then.
		0.5: func(d time.Duration) time.Duration { return d + 60*ms },
	} {
		without, with := p95(0, load), p95(backlog, load)
		t.Logf("load %v: %v without, %v with", load, without, with)
		errorIf(t, with > bound(without), "load %v: the others wait %v, and %v without the tenant", load, with, without)
	}
}

// Users who call at 8 of 10 calls a second wait as if 100 batch calls behind them were hardly
// there, no call is lost, and the batch has what the users leave: in memory and in a store.
func TestBehind_LeavesWhileNoUserWaits(t *testing.T) {
	for _, remote := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.PerSecond(10))
			if remote {
				b = shared(t, &far{Store: store.NewMemory(), way: ms, jitter: 0.05}, outbound.PerSecond(10))
			}
			users, all := New(b, Config{}), make(calls, 8*60)
			ctx, cancel := context.WithCancel(bg)
			batch := loop(t, ctx, New(b, Config{Behind: users}), 100, nil)
			for i := range all {
				time.Sleep(125 * ms)
				all[i] = comeAndUse(bg, users, done, 1)
			}
			pass(time.Second)
			n, _ := all.admitted()
			behind := batch.Load()
			errorIf(t, n != len(all) || all.p95() > 250*ms || behind < 100,
				"remote: %v: p95 %v, %d calls of users, %d of the batch", remote, all.p95(), n, behind)
			if pass(10 * time.Second); batch.Load()-behind < 97 {
				t.Errorf("remote: %v: the batch alone made %d calls in 10 s", remote, batch.Load()-behind)
			}
			cancel()
			pass(time.Second)
		})
	}
}

// While users wait no batch call leaves, those at their deadlines are refused, and the rest leaves as
// soon as the last user has: also when the users are cancelled, and through two queues in between.
func TestBehind_WaitsForABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.PerSecond(10))
		users := New(b, Config{})
		middle := New(b, Config{Behind: users})
		batch := New(b, Config{Behind: middle})
		ctx, cancel := context.WithCancel(bg)
		comeAll(1000, ctx, users, 1)
		begin, late := time.Now(), comeIn(t, 5*time.Second, batch, 1)
		left := loop(t, ctx, batch, 5, nil)
		pass(10 * time.Second)
		errorIf(t, left.Load() > 0 || batch.Len() != 5 || middle.Len() > 0 || !errors.Is(late.ended().err, outbound.ErrThrottled),
			"%d batch calls have left before the users, %d wait, %v", left.Load(), batch.Len(), late.ended().err)
		for users.Len() > 0 {
			pass(100 * ms)
		}
		took := time.Since(begin)
		errorIf(t, left.Load() > 1 || took < 99*time.Second, "after %v %d batch calls have left", took, left.Load())
		pass(time.Second)
		if n := left.Load(); n < 8 {
			t.Errorf("%d batch calls have left in the second after the users", n)
		}
		giveUp, stop := context.WithCancel(bg)
		comeAll(100, giveUp, users, 1)
		pass(time.Second)
		n := left.Load()
		stop()
		pass(time.Second)
		n = left.Load() - n
		errorIf(t, n < 7, "%d batch calls have left in the second after the users gave up", n)
		cancel()
		pass(time.Second)
	})
}

// While users wait, a call that its own queue makes too late is refused when it comes, though the queue
// has booked nothing yet.
func TestBehind_RefusesEarlyWhileUsersWait(t *testing.T) {
	bothWays(t, []outbound.Limit{outbound.PerSecond(10)}, func(t *testing.T, b *outbound.Bucket) {
		ctx, cancel := context.WithCancel(bg)
		users := New(b, Config{})
		batch := New(b, Config{Behind: users})
		comeAll(100, ctx, users, 1)
		comeAll(30, ctx, batch, 1)
		s := batch.Stats()
		errorIf(t, s.Waiting != 30 || s.NextIn != 0, "%+v", s)
		c := comeIn(t, 2*time.Second, batch, 1)
		errorIf(t, c.end.Load() == nil || c.refused().RetryAfter < 2*time.Second, "with 2 s behind 30 calls: %v", c.ended())
		c = comeIn(t, 4*time.Second, batch, 1)
		errorIf(t, c.end.Load() != nil, "with 4 s behind 30 calls, which the users may let go: %v", c.ended().err)
		cancel()
		pass(time.Minute)
	})
}

// A job behind users sends its further requests while users wait for the end of the job.
func TestBehind_DelaysNoRequestOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.PerSecond(10), outbound.InFlight(1))
		users := New(b, Config{})
		batch := New(b, Config{Behind: users})
		err := outbound.Do(bg, batch, one, func(ctx context.Context) error {
			come(bg, users, 1)
			pass(time.Second)
			for range 3 {
				var p outbound.Permit
				if err := p.AcquireIn(ctx, batch, one); err != nil {
					return err
				}
				p.Done()
			}
			return nil
		})
		pass(time.Second)
		errorIf(t, err != nil || users.Len() > 0, "%v, %d users wait", err, users.Len())
	})
}
