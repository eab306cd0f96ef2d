package outbound

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// noRoom checks that l is refused because its Keyed is full.
func noRoom(t *testing.T, l Limiter, when string) {
	t.Helper()
	errorIs(t, errOf(l.Acquire(ctx, Cost{1})), ErrFull, "%s", when)
}

// A limiter is dropped when it is of no more use, and not before.
func TestKeyed_DropsOnlyIdleLimiters(t *testing.T) {
	bubble(t, "A limiter is dropped when it is idle and no permit is in use", func(t *testing.T) {
		made := 0
		k := &Keyed[string]{Max: 1, New: func(key string) (Limiter, error) { made++; return perTenant(key) }}
		first := k.For("a")
		p := mustAcquire(t, first)
		noRoom(t, k.For("b"), "while the bucket is not empty")
		time.Sleep(4 * time.Minute)
		noRoom(t, k.For("b"), "while a permit is in use")
		equal(t, p.pin.Load(), 1, "permits are counted")
		p.Done()
		p.Done()
		mustAcquire(t, k.For("b")).Done()
		time.Sleep(time.Second)
		mustAcquire(t, first).Done() // a handle outlives its limiter
		errorIf(t, k.Len() != 1 || made != 3, "%d limiters, %d made, want 1 of 3", k.Len(), made)
	})
	bubble(t, "Idle limiters stay for a minute, and are dropped by the calls of other keys", func(t *testing.T) {
		k := &Keyed[int]{New: func(i int) (Limiter, error) { return perTenant(strconv.Itoa(i)) }}
		for i := range 1000 {
			mustAcquire(t, k.For(i)).Done()
			time.Sleep(time.Second / 20)
		}
		errorIf(t, k.Len() != 1000, "%d limiters within a minute, want 1000", k.Len())
		time.Sleep(2 * time.Minute)
		for i := range 1000 {
			mustAcquire(t, k.For(-i)).Done()
		}
		errorIf(t, k.Len() > 1200, "%d limiters: idle ones stay", k.Len())
	})
	bubble(t, "A limiter without the method Idle is kept", func(t *testing.T) {
		k := &Keyed[int]{Max: 3, New: func(int) (Limiter, error) {
			return limiterFunc(func(context.Context, Cost) (Permit, error) { return Permit{}, nil }), nil
		}}
		for i := range 3 {
			mustAcquire(t, k.For(i)).Done()
		}
		time.Sleep(24 * time.Hour)
		noRoom(t, k.For(3), "fourth key")
	})
	// It is dropped when that has ended, also by a panic.
	t.Run("A limiter is not dropped while a call is in its Acquire, or Use in its function", func(t *testing.T) {
		var k *Keyed[string]
		full := func() { noRoom(t, k.For("other"), "another key") }
		acquire := full
		k = &Keyed[string]{Max: 1, New: func(key string) (Limiter, error) {
			if key == "other" {
				return Unlimited{}, nil
			}
			return &numbered{acquire: acquire}, nil
		}}
		p := mustAcquire(t, k.For("key"))
		full()
		p.Done()
		mustAcquire(t, k.For("other")).Done()
		must(t, k.Use("key", func(Limiter) error { full(); return nil }))
		mustAcquire(t, k.For("other")).Done()
		acquire = func() { panic("acquire") }
		ending(func() { _, _ = k.Acquire(ctx, "key", Cost{1}) })
		mustAcquire(t, k.For("other")).Done()
	})
	// One around a bucket of its own stays until then, too.
	bubble(t, "Limiters of many keys around one busy bucket are dropped, and the last one stays until the bucket is idle", func(t *testing.T) {
		made := 0
		var all *Bucket
		k := &Keyed[string]{Max: 2, New: func(key string) (Limiter, error) {
			b := Must(NewBucket(key, PerHour(3).Burst(3)))
			if key[0] == 's' { // all is made for the first key, and only their limiters have it
				if made++; made == 1 {
					all = b
				}
				b = all
			}
			return Observe(lined{b}, key, func(context.Context, Event) {}), nil
		}}
		mustAcquire(t, k.For("s1")).Done()
		mustAcquire(t, k.For("s2")).Done()
		time.Sleep(time.Second)
		mustAcquire(t, k.For("own")).Done() // in the place of one of both
		errorIf(t, k.Len() != 2 || all.core.Keys.Load() != 1 || all.Idle(),
			"%d limiters, %d around the bucket, idle %v", k.Len(), all.core.Keys.Load(), all.Idle())
		time.Sleep(10 * time.Minute)
		noRoom(t, k.For("other"), "while both buckets are busy")
		time.Sleep(time.Hour)
		mustAcquire(t, k.For("other")).Done()
	})
	bubble(t, "What a tenant has spent of a day is kept until the day is over, however long no call comes. Then its limiter is dropped", func(t *testing.T) {
		k := &Keyed[string]{Max: 1, New: func(key string) (Limiter, error) { return NewBucket(key, Daily(2, time.UTC)) }}
		until(t, "2024-02-29T06:00:00Z")
		mustAcquire(t, k.For("a")).Done()
		mustAcquire(t, k.For("a")).Done()
		until(t, "2024-02-29T23:59:00Z")
		noRoom(t, k.For("b"), "before midnight")
		refused(t, k.For("a"), Cost{1}) // the third of a day
		until(t, "2024-03-01T00:00:01Z")
		mustAcquire(t, k.For("b")).Done()
		errorIf(t, k.Len() != 1, "%d limiters", k.Len())
	})
}

// A permit whose Done is forgotten keeps its limiter for five minutes.
func TestKeyed_ForgottenDoneKeepsALimiterFiveMinutes(t *testing.T) {
	for name, limits := range map[string][]Limit{
		"word":       {PerSecond(10)},
		"two limits": {PerSecond(10), PerMinute(500).Of(0, "minute")},
		"in flight":  {PerSecond(10), InFlight(1)},
		"windows":    {Window(10, time.Second), FixedWindow(500, time.Minute)},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := &Keyed[string]{Max: 1, New: func(key string) (Limiter, error) { return NewBucket(key, limits...) }}
			p := mustAcquire(t, k.For("a"))
			if name == "in flight" {
				p.in.Done() // as the collection of a forgotten permit does: what stays is the pin
			}
			time.Sleep(5*time.Minute - time.Second)
			noRoom(t, k.For("b"), name+", before five minutes")
			time.Sleep(time.Second)
			mustAcquire(t, k.For("b")).Done()
			p.Done() // too late, and without effect
			errorIf(t, k.Len() != 1, "%s: %d limiters", name, k.Len())
		})
	}
}

// numbered is a limiter that is always idle. Its permits know it.
type numbered struct {
	acquire func()
	calls
}

func (*numbered) Idle() bool { return true }

func (n *numbered) Acquire(ctx context.Context, _ Cost) (Permit, error) {
	if n.acquire != nil {
		n.acquire()
	}
	return NewPermit(n), ctx.Err()
}

// lined is a limiter without calls of its own around a bucket, as a queue is.
type lined struct{ bucket *Bucket }

func (w lined) Bucket() *Bucket { return w.bucket }

func (w lined) Idle() bool { return w.bucket.Idle() }

func (w lined) Acquire(ctx context.Context, c Cost) (Permit, error) {
	return w.bucket.Acquire(ctx, c)
}

// Two limiters of one key never have permits in use at the same time, though idle ones are dropped at
// every chance.
func TestKeyed_NoTwoLimitersOfAKeyAreInUse(t *testing.T) {
	k := &Keyed[int]{Max: 3, New: func(int) (Limiter, error) { return &numbered{}, nil }}
	const keys = 6
	var mu [keys]sync.Mutex
	var inUse [keys]Call
	var out [keys]int
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5000 {
				i := rand.IntN(keys)
				p, err := k.Acquire(ctx, i, Cost{1})
				if err != nil {
					errorIf(t, !errors.Is(err, ErrFull), "%v", err)
					continue
				}
				mu[i].Lock()
				errorIf(t, out[i] > 0 && inUse[i] != p.call, "two limiters of one key are in use")
				inUse[i] = p.call
				out[i]++
				mu[i].Unlock()
				runtime.Gosched()
				mu[i].Lock()
				out[i]--
				mu[i].Unlock()
				p.Done()
			}
		})
	}
	all.Wait()
	errorIf(t, k.Len() > 3, "%d limiters, want at most 3", k.Len())
}
