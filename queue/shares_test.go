package queue

import (
	"context"
	"fmt"
	"math"
	"sync"
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
		if err := sent.CheckWindow(s.n, s.window); err != nil {
			t.Errorf("%v: %v", s, err)
		}
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
			if wrong {
				t.Errorf("%v: in window %d queue %d has %v calls, want %.1f: %v", s, k+3, i, n, want, w)
			}
		}
		if used < s.n-1 {
			t.Errorf("%v: %v calls in window %d", s, used, k+3)
		}
	}
	each := float64(requests) / float64(len(left))
	t.Logf("%v: %d windows, %.3f requests a call, the few wait %v", s, len(all), each, longest)
	// Without shares, 2, 3 and 10 queues around 100 calls a minute make 0.14, 0.21 and 0.63.
	if len(all) < s.windows || longest > s.window+s.window/20 || s.window == time.Minute && each > 0.14+0.07*float64(s.queues) {
		t.Errorf("%v: %d windows, %.3f requests a call, a call of the few waits %v", s, len(all), each, longest)
	}
}
