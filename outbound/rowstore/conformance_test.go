package rowstore

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// Rows without a clock, which cannot be locked, pass the conformance test.
func TestConformance_OwnClocks(t *testing.T) {
	rows := unlocked{&process{newTable(), func() time.Duration { return time.Hour }}}
	outboundtest.TestStore(t, func(*testing.T) store.Store { return New(rows, Config{Timeout: time.Minute}) })
}

// A store behind a bad line passes the conformance test. The line loses no reply: a repeated reply
// has the state of a moment ago, and the test wants the state of now. Its ways are short: a step may
// count from as much earlier, and the test allows 20 µs.
func TestConformance_OverABadLine(t *testing.T) {
	seed := dice(t).Uint64()
	for sentence, check := range outboundtest.StoreCases() {
		t.Run(sentence, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := &line{table: newTable(), lost: 0.1, repeated: 0.3, delay: time.Microsecond / 10, dice: rand.New(rand.NewPCG(seed, 0))}
				defer l.wg.Wait()
				check(t, New(l, Config{Timeout: time.Minute}))
			})
		})
	}
}

// Three processes change the limits of a key between each other's calls.
func TestConformance_ChangesOfLimits(t *testing.T) {
	n := 100
	if os.Getenv("DRIPFEED_LONG") != "" {
		n = 40_000
	}
	rollouttest.PlayAll(t, n, true, func() func() store.Store {
		rows := newTable()
		return func() store.Store { return New(rows, Config{Timeout: time.Minute}) }
	})
}

// process is one that reads its own clock. Its way to the table and back takes 1 ms each.
type process struct {
	*table
	ahead func() time.Duration // of its clock
}

const way = time.Millisecond

func (p *process) Swap(_ context.Context, swaps []Swap) error {
	time.Sleep(way)
	p.swap(swaps, p.ahead(), true)
	time.Sleep(way)
	return nil
}

func (p *process) Lock(ctx context.Context, s *Swap, compute func()) error {
	time.Sleep(way)
	return p.lock(ctx, s, func() {
		s.Clock, s.Own = s.Clock+p.ahead(), true
		compute()
	}, func() { time.Sleep(way) })
}

// played is what four processes have done, of which two have clocks that are ahead.
type played struct {
	at    []time.Duration // of all calls
	calls [4]int
	skews [4][]store.StoreEvent
}

// play has each process call a key as often as it may, for a time.
func play(t *testing.T, rows func(Rows) Rows, d time.Duration, limit outbound.Limit, ahead func(process int) time.Duration) (p played) {
	table, begin := newTable(), time.Now()
	var mu sync.Mutex
	each(4, func(i int) {
		s := New(rows(&process{table, func() time.Duration { return ahead(i) }}), Config{Timeout: time.Minute, Observe: func(e store.StoreEvent) {
			mu.Lock()
			defer mu.Unlock()
			p.skews[i] = append(p.skews[i], e)
		}})
		bucket, err := outbound.NewSharedBucket(s, "key", limit)
		require.NoError(t, err)
		q := queue.New(bucket, queue.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		each(8, func(int) {
			for ctx.Err() == nil {
				permit, err := q.Acquire(ctx, outbound.Cost{1})
				if err != nil {
					return // the time that is left is too short
				}
				mu.Lock()
				p.at = append(p.at, time.Since(begin))
				p.calls[i]++
				mu.Unlock()
				permit.Done()
			}
		})
	})
	slices.Sort(p.at)
	return p
}

// most returns the largest number of calls from a time on that are above rate times the time in
// which they left.
func (p *played) most(from time.Duration, rate float64) (most float64) {
	for i := range p.at {
		for k := i; k < len(p.at) && p.at[i] >= from; k++ {
			most = max(most, float64(k-i+1)-rate*(p.at[k]-p.at[i]).Seconds())
		}
	}
	return most
}

// Rows without a clock: two of four processes have clocks that are ahead, or that are set. All together
// admit no more than the limit in real time, and, once, what leaks in as long as the clocks differ. Each
// process has its share, and one whose clock is behind reports it once.
func TestSkew_LimitHoldsInRealTime(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	limit := outbound.Limit{Capacity: 20, LeakRate: 50}
	const d, later = 30 * time.Second, 15 * time.Second
	setBy := func(before, after time.Duration) func(time.Duration) time.Duration {
		return func(at time.Duration) time.Duration {
			if at < later {
				return before
			}
			return after
		}
	}
	for name, c := range map[string]struct {
		ahead  func(at time.Duration) time.Duration
		differ time.Duration // the clocks at most
		events [4]int
	}{
		"the same":     {setBy(0, 0), 0, [4]int{}},
		"10ms":         {setBy(10*time.Millisecond, 10*time.Millisecond), 10 * time.Millisecond, [4]int{}}, // less is seen, by the way back
		"50ms":         {setBy(50*time.Millisecond, 50*time.Millisecond), 50 * time.Millisecond, [4]int{1, 0, 1, 0}},
		"3s":           {setBy(3*time.Second, 3*time.Second), 3 * time.Second, [4]int{1, 0, 1, 0}},
		"a day":        {setBy(24*time.Hour, 24*time.Hour), 24 * time.Hour, [4]int{1, 0, 1, 0}},
		"set ahead":    {setBy(0, 3*time.Second), 3 * time.Second, [4]int{1, 0, 1, 0}},
		"set back":     {setBy(0, -3*time.Second), 0, [4]int{0, 1, 0, 1}},
		"set to equal": {setBy(3*time.Second, 0), 3 * time.Second, [4]int{1, 1, 1, 1}},
	} {
		for form, rows := range forms {
			t.Run(name+" "+form, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					begin := time.Now()
					p := play(t, rows, d, limit, func(i int) time.Duration { return time.Duration(i%2) * c.ahead(time.Since(begin)) })
					t.Log(p.calls, p.most(0, limit.LeakRate), p.most(time.Second, limit.LeakRate), p.skews)
					const ways = 1.5 // in which some units leak
					require.LessOrEqual(t, p.most(0, limit.LeakRate), limit.Capacity+min(limit.Capacity, limit.LeakRate*c.differ.Seconds())+ways)
					if name != "set ahead" { // from then on they count as equal
						require.LessOrEqual(t, p.most(time.Second, limit.LeakRate), limit.Capacity+ways)
					}
					all := float64(len(p.at))
					require.GreaterOrEqual(t, all, 0.97*limit.LeakRate*d.Seconds())
					for i, n := range p.calls {
						require.InDelta(t, all/4, n, 0.1*all/4)
						require.Len(t, p.skews[i], c.events[i])
						for _, e := range p.skews[i] {
							require.Equal(t, store.EventSkew, e.Kind)
							require.ErrorContains(t, e.Err, "is or was ahead") // in "set to equal" it is no more
						}
					}
				})
			})
		}
	}
}
