package queue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// departures are those of all calls through one limit.
type departures struct {
	mu    sync.Mutex
	all   []time.Time
	users []time.Time
	batch int
	least int // units that were free after a call of the batch, by an ideal limit
}

// loops makes n calls of the batch wait all the time. free counts what an ideal limit has left.
func (d *departures) loops(ctx context.Context, l outbound.Limiter, n int, free func([]time.Time) int, takes time.Duration) {
	d.least = 1e9
	for range n {
		go func() {
			for {
				p, err := l.Acquire(ctx, one)
				if err != nil {
					return
				}
				d.mu.Lock()
				d.batch, d.all = d.batch+1, append(d.all, time.Now())
				units := free(d.all)
				for _, at := range slices.Backward(d.users) {
					if !at.Equal(time.Now()) {
						break
					}
					units++ // the store may have booked that call later
				}
				d.least = min(d.least, units)
				d.mu.Unlock()
				if takes > 0 {
					time.Sleep(takes)
				}
				p.Done()
			}
		}()
	}
}

// user makes a call and returns its wait.
func (d *departures) user(t *testing.T, l outbound.Limiter) time.Duration {
	came := time.Now()
	p := admitted(t, l, 1)
	d.mu.Lock()
	d.all, d.users = append(d.all, time.Now()), append(d.users, time.Now())
	d.mu.Unlock()
	p.Done()
	return time.Since(came)
}

func windowed(n int, window time.Duration) func([]time.Time) int {
	return func(all []time.Time) int {
		free, now := n, time.Now()
		for _, at := range slices.Backward(all) {
			if now.Sub(at) >= window {
				break
			}
			free--
		}
		return free
	}
}

// Calls of a queue with a Headroom leave only while as much stays free. Users find it without a
// wait, one by one and 60 in one burst, in one process and in another one. The queue uses the rest.
func TestHeadroom_UsersBeforeBatch(t *testing.T) {
	for name, limits := range map[string][]outbound.Limit{
		"window":         {outbound.Window(100, time.Minute)},
		"leaky":          {{Capacity: 100, LeakRate: 100. / 60}},
		"fixed":          {outbound.FixedWindow(100, time.Minute)},
		"window, leaky":  {outbound.Window(100, time.Minute), {Capacity: 1000, LeakRate: 1000}},
		"window, a day":  {outbound.Window(100, time.Minute), outbound.Daily(1e6, time.UTC)},
		"slots, unused":  {outbound.Window(100, time.Minute), outbound.InFlight(1000)},
		"calendar hours": {outbound.Hourly(6000)},
	} {
		for _, way := range []time.Duration{-1, 0, 20 * ms} { // -1: in memory
			if raced && (way == 0 || name != "window" && name != "slots, unused") {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				n, window, headroom := 100, time.Minute, 0.6
				if name == "calendar hours" {
					n, window = 6000, time.Hour
				}
				b := bucket(t, limits...)
				other := b
				if m := store.NewMemory(); way >= 0 {
					b, other = shared(t, &far{Store: m, way: way}, limits...), shared(t, &far{Store: m, way: way}, limits...)
				}
				free := windowed(n, window)
				if limits[0].Capacity == 100 && name == "leaky" || name == "fixed" || name == "calendar hours" {
					free = func([]time.Time) int { return n } // other limits than a window free units at other times
				}
				ctx, cancel := context.WithCancel(bg)
				d := new(departures)
				d.loops(ctx, New(b, Config{Headroom: headroom}), 50, free, 0)
				users := New(other, Config{})
				pass(5*window + window/2)
				if want := float64(n) * (1 - headroom) * 5; float64(d.batch) < want*0.98 {
					t.Errorf("%s, %v away: %d calls of the batch in 5 windows, want %v", name, way, d.batch, want)
				}
				d.user(t, users) // which learns how far the store is away
				most := max(0, 2*way) + max(0, way)/4
				for range 12 {
					pass(5 * time.Second)
					w := d.user(t, users)
					errorIf(t, w > most, "%s, %v away: a user waits %v", name, way, w)
				}
				pass(2 * window) // the users' have left
				var burst sync.WaitGroup
				var late time.Duration
				for range 60 {
					burst.Go(func() {
						w := d.user(t, users)
						d.mu.Lock()
						late = max(late, w)
						d.mu.Unlock()
					})
				}
				pass(time.Second)
				if burst.Wait(); late > 2*most { // the first is booked alone, before the others come
					t.Errorf("%s, %v away: one of 60 users waits %v", name, way, late)
				}
				if keeps := int(float64(n) * headroom); d.least < keeps {
					t.Errorf("%s, %v away: %d units were free after a call of the batch, want %d", name, way, d.least, keeps)
				}
				cancel()
				pass(time.Second)
			})
		}
	}
}

// Slots of an InFlight stay free as well, also for another process.
func TestHeadroom_KeepsSlotsFree(t *testing.T) {
	test := func(t *testing.T, b, other *outbound.Bucket) {
		ctx, cancel := context.WithCancel(bg)
		batch, d := New(b, Config{Headroom: 0.3}), new(departures)
		d.loops(ctx, batch, 50, func([]time.Time) int { return 1 }, time.Second)
		pass(10500 * ms)
		errorIf(t, d.batch < 7*10 || d.batch > 7*11, "%d calls of 1 s in 10.5 s, want 7 at a time", d.batch)
		if e, err := batch.Explain(bg, one); err != nil || e.Because != "in flight" || !strings.Contains(e.String(), "7 of 10 calls in progress, 3 kept free for others") {
			t.Errorf("%v %v", e, err)
		}
		users := New(other, Config{})
		for range 20 {
			for range 3 {
				c := comeAndUse(bg, users, func(p *outbound.Permit) { time.Sleep(300 * ms); p.Done() }, 1)
				errorIf(t, c.ended().left != c.came, "a user waits %v", c.ended().left.Sub(c.came))
			}
			pass(370 * ms)
		}
		cancel()
		pass(time.Second)
	}
	bothWays(t, []outbound.Limit{outbound.InFlight(10)}, func(t *testing.T, b *outbound.Bucket) { test(t, b, b) })
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		test(t, shared(t, m, outbound.InFlight(10)), shared(t, m, outbound.InFlight(10)))
	})
}

// A Headroom that is no fraction, and a call that it leaves no capacity for, are errors. An
// Explanation says what is kept free.
func TestHeadroom_ErrorsAndWords(t *testing.T) {
	bothWays(t, []outbound.Limit{outbound.Window(10, time.Minute)}, func(t *testing.T, b *outbound.Bucket) {
		for _, h := range []float64{1, -0.1, 2} {
			_, err := New(b, Config{Headroom: h}).Acquire(bg, one)
			errorIf(t, !errors.Is(err, outbound.ErrInvalid), "Headroom %v: %v", h, err)
		}
		batch := New(b, Config{Headroom: 0.9, MaxWait: time.Second})
		if _, err := batch.Acquire(bg, outbound.Cost{2}); !errors.Is(err, outbound.ErrTooLarge) || !strings.Contains(err.Error(), "less 9 kept free") {
			t.Errorf("a call of 2 units beside 9 of 10: %v", err)
		}
		admitted(t, batch, 1)
		_, err := batch.Acquire(bg, one)
		if full, ok := errors.AsType[*outbound.ThrottledError](err); !ok || full.RetryAfter < 59*time.Second || full.RetryAfter > 62*time.Second {
			t.Errorf("a call that has to wait for a minute: %v", err)
		}
		e, err := batch.Explain(bg, one)
		if err != nil || e.Because != "limit" || e.Wait < 59*time.Second || !strings.Contains(e.String(), "level 1 of 10, 9 kept free for others, capacity for 1 in 1m") {
			t.Errorf("%v %v", e, err)
		}
		e, err = b.Explain(bg, one)
		errorIf(t, err != nil || e.Wait != 0, "for others: %v %v", e, err)
	})
}

// settling is a queue whose calls cost more than was booked.
type settling struct{ *Queue }

func (s settling) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := s.Queue.Acquire(ctx, c)
	if err == nil {
		p.Settle(outbound.Cost{1.5 * c[0]})
	}
	return p, err
}

// Users find capacity without a wait beside batch work that is within another limit, costs more than
// was booked, was on hold, or has a share while the store is unavailable. The batch work goes on.
func TestHeadroom_BesideWhatElseHappens(t *testing.T) {
	limit := outbound.Window(100, time.Minute)
	for name, c := range map[string]struct {
		n     int // the capacity, or that of the share
		batch func(*outbound.Bucket) outbound.Limiter
		event func(*outbound.Bucket)
	}{
		"within": {n: 100, batch: func(b *outbound.Bucket) outbound.Limiter {
			return outbound.Within(New(bucket(t, outbound.PerSecond(3)), Config{}), New(b, Config{Headroom: 0.6}))
		}},
		"settled to more": {n: 100, batch: func(b *outbound.Bucket) outbound.Limiter {
			return settling{New(b, Config{Headroom: 0.6})}
		}},
		"held": {n: 100, event: func(b *outbound.Bucket) {
			noError(t, b.Hold(bg, 20*time.Second))
			pass(20*time.Second + ms)
		}},
		"outage": {n: 25},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, limit)
			if name == "outage" {
				b, _ = fallen(t, limit)
			}
			var batch outbound.Limiter = New(b, Config{Headroom: 0.6})
			if c.batch != nil {
				batch = c.batch(b)
			}
			ctx, cancel := context.WithCancel(bg)
			d := new(departures)
			d.loops(ctx, batch, 20, windowed(c.n, time.Minute), 0)
			if pass(150 * time.Second); c.event != nil {
				c.event(b)
			}
			users, before := New(b, Config{}), d.batch
			for range 24 {
				w := d.user(t, users)
				errorIf(t, w > 0, "%s: a user waits %v", name, w)
				pass(5 * time.Second)
			}
			keeps := c.n * 6 / 10
			errorIf(t, d.least < keeps, "%s: %d units were free after a call of the batch, want %d", name, d.least, keeps)
			if want := max(1, c.n*4/10-12); d.batch-before < want { // users make 12 a minute
				t.Errorf("%s: %d calls of the batch in 2 minutes, want %d", name, d.batch-before, want)
			}
			cancel()
			pass(time.Second)
		})
	}
}

// A slot that is granted while another limit lacks capacity has no queue ask the store again and
// again: once for each change, and with pauses.
func TestInFlight_GrantWithoutCapacityAsksWithPauses(t *testing.T) {
	for _, limit := range []outbound.Limit{outbound.Window(10, time.Minute), outbound.FixedWindow(10, time.Minute), outbound.Daily(10, time.UTC), outbound.PerMinute(10)} {
		for _, c := range []Config{{}, {Headroom: 0.2}, {MaxWait: 40 * time.Second}} {
			synctest.Test(t, func(t *testing.T) {
				m := &far{Store: store.NewMemory()}
				ctx, cancel := context.WithCancel(bg)
				for range 2 {
					q := New(shared(t, m, limit, outbound.InFlight(5)), c)
					for range 8 {
						go func() {
							for ctx.Err() == nil {
								if p, err := q.Acquire(ctx, one); err == nil {
									time.Sleep(ms)
									p.Done()
								} else {
									time.Sleep(time.Second)
								}
							}
						}()
					}
				}
				pass(5 * time.Second) // the limit is full now
				before := m.trips.Load()
				pass(20 * time.Second)
				n := m.trips.Load() - before
				errorIf(t, n > 2*20*20, "%v, %+v: %d requests in 20 s", limit, c, n)
				cancel()
				pass(2 * time.Second)
			})
		}
	}
}
