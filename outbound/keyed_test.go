package outbound

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

func unlimited[K any](K) (Limiter, error) { return Unlimited{}, nil }

// Each key has a limiter of its own.
func TestKeyed_EachKeyHasItsLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Keyed[string]{New: perTenant}
		for _, key := range []string{"a", "b", "", "a\x00", "\xff"} {
			h := k.For(key)
			mustAcquire(t, h).Done()
			if full := refused(t, h, Cost{1}); full.Key != key {
				t.Errorf("second call of %q: %v", key, full)
			}
		}
		if k.Len() != 5 {
			t.Errorf("%d limiters, want 5", k.Len())
		}
	})
}

// Keys are compared as Go compares them, whatever their type.
func TestKeyed_KeysOfAnyType(t *testing.T) {
	named := &Keyed[string]{New: func(string) (Limiter, error) { return NewBucket("one name", PerHour(1)) }}
	numbers := &Keyed[int]{New: func(int) (Limiter, error) { return NewBucket("7", PerHour(1)) }}
	any7 := &Keyed[any]{New: func(key any) (Limiter, error) { return NewBucket(fmt.Sprint(key), PerHour(1)) }}
	for i := range 100 {
		for _, l := range []Limiter{named.For(strconv.Itoa(i)), numbers.For(i), any7.For(i), any7.For(strconv.Itoa(i))} {
			mustAcquire(t, l).Done()
			refused(t, l, Cost{1})
		}
	}
	if named.Len() != 100 || numbers.Len() != 100 || any7.Len() != 200 {
		t.Errorf("%d, %d, %d limiters, want 100, 100, 200", named.Len(), numbers.Len(), any7.Len())
	}
}

// Concurrent first calls of a key get one limiter.
func TestKeyed_ConcurrentFirstCallsShareALimiter(t *testing.T) {
	for range 50 {
		k := &Keyed[string]{Max: 1, New: func(key string) (Limiter, error) {
			runtime.Gosched()
			return NewBucket(key, PerHour(1))
		}}
		var admitted atomic.Int32
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				switch _, err := k.Acquire(ctx, "key", Cost{1}); {
				case err == nil:
					admitted.Add(1)
				case errors.Is(err, ErrFull) || !errors.Is(err, ErrThrottled):
					t.Error(err)
				}
			})
		}
		all.Wait()
		if admitted.Load() != 1 || k.Len() != 1 {
			t.Fatalf("%d admitted, %d limiters, want 1 and 1", admitted.Load(), k.Len())
		}
	}
}

// Calls of a new key are refused when all limiters are in use, or go to Overflow.
func TestKeyed_FullRefusesOrOverflows(t *testing.T) {
	k := &Keyed[string]{New: perTenant, Max: 2}
	defer mustAcquire(t, k.For("a")).Done()
	defer mustAcquire(t, k.For("b")).Done()
	full := refused(t, k.For("c"), Cost{1})
	if !errors.Is(full, ErrFull) || full.RetryAfter != 0 || full.Error() != "outbound: rate limited: too many keys: 2 are in use" {
		t.Errorf("without Overflow: %v", full)
	}
	k.Overflow = Must(NewBucket("overflow", PerHour(1)))
	mustAcquire(t, k.For("c")).Done()
	if full := refused(t, k.For("d"), Cost{1}); full.Key != "overflow" || k.Len() != 2 {
		t.Errorf("second key beyond Max, with %d limiters: %v", k.Len(), full)
	}
}

// There are never more limiters than Max, however many keys come.
func TestKeyed_ManyNewKeysStayWithinMax(t *testing.T) {
	k := &Keyed[uint64]{Max: 1000, New: unlimited[uint64]}
	busy := &Keyed[uint64]{Max: 100, New: func(uint64) (Limiter, error) { return NewBucket("", PerHour(1)) }}
	keys := 200_000
	if raced {
		keys /= 10
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range keys / 4 {
				p, err := k.Acquire(ctx, rand.Uint64(), Cost{1})
				if err != nil && !errors.Is(err, ErrFull) {
					t.Error(err)
				}
				p.Done()
				if i%50 > 0 {
					continue
				}
				_, err = busy.Acquire(ctx, rand.Uint64(), Cost{1})
				if n, m := k.Len(), busy.Len(); n > 1000 || m > 100 || err != nil && !errors.Is(err, ErrFull) {
					t.Errorf("%d and %d limiters, %v", n, m, err)
				}
			}
		})
	}
	all.Wait()
	if busy.Len() != 100 {
		t.Errorf("%d busy limiters, want 100", busy.Len())
	}
}

// A key that does not equal itself is an error, also inside of a struct.
func TestKeyed_NaNIsRefused(t *testing.T) {
	floats := &Keyed[float64]{New: unlimited[float64], Overflow: Unlimited{}}
	type pair struct {
		name string
		x    float64
	}
	pairs := &Keyed[pair]{New: unlimited[pair]}
	for _, l := range []Limiter{floats.For(math.NaN()), pairs.For(pair{"secret", math.NaN()})} {
		if _, err := l.Acquire(ctx, Cost{1}); !errors.Is(err, ErrInvalid) || errors.Is(err, ErrThrottled) {
			t.Errorf("NaN: %v", err)
		}
	}
	mustAcquire(t, floats.For(math.Copysign(0, -1))).Done()
	mustAcquire(t, floats.For(0)).Done()
	mustAcquire(t, floats.For(math.Inf(1))).Done()
	if floats.Len() != 2 || pairs.Len() != 0 {
		t.Errorf("%d and %d limiters, want 2 and 0", floats.Len(), pairs.Len())
	}
}

// A New that fails is an error, and keeps no limiter.
func TestKeyed_FailedNewKeepsNothing(t *testing.T) {
	failed := errors.New("failed")
	var none *Bucket
	for what, c := range map[string]struct {
		keyed *Keyed[string]
		want  error
	}{
		"nil Keyed":    {nil, ErrInvalid},
		"nil New":      {&Keyed[string]{}, ErrInvalid},
		"error":        {&Keyed[string]{New: func(string) (Limiter, error) { return Unlimited{}, failed }}, failed},
		"nil Limiter":  {&Keyed[string]{New: func(string) (Limiter, error) { return nil, nil }}, ErrInvalid},
		"nil Bucket":   {&Keyed[string]{New: func(string) (Limiter, error) { return none, nil }}, ErrInvalid},
		"negative Max": {&Keyed[string]{New: perTenant, Max: -1, Overflow: Unlimited{}}, ErrInvalid},
		"bad limit":    {&Keyed[string]{New: func(k string) (Limiter, error) { return NewBucket(k, PerSecond(-1)) }}, ErrInvalid},
	} {
		for range 2 {
			if _, err := c.keyed.For("key").Acquire(ctx, Cost{1}); !errors.Is(err, c.want) || errors.Is(err, ErrThrottled) {
				t.Errorf("%s: %v, want %v", what, err, c.want)
			}
		}
		if c.keyed.Len() != 0 {
			t.Errorf("%s: %d limiters", what, c.keyed.Len())
		}
	}
}

// A panic of New reaches the caller, and the next call makes the limiter.
func TestKeyed_PanicInNewGoesOn(t *testing.T) {
	ready := false
	k := &Keyed[string]{Max: 1, New: func(key string) (Limiter, error) {
		if !ready {
			panic("new")
		}
		return perTenant(key)
	}}
	func() {
		defer func() {
			if v := recover(); v != "new" || k.Len() != 0 {
				t.Errorf("recovered %v, %d limiters", v, k.Len())
			}
		}()
		_, _ = k.For("key").Acquire(ctx, Cost{1})
	}()
	ready = true
	mustAcquire(t, k.For("key")).Done()
}

// A call whose ctx has ended makes no limiter.
func TestKeyed_EndedCtxMakesNoLimiter(t *testing.T) {
	k := &Keyed[string]{New: func(string) (Limiter, error) { t.Error("made"); return Unlimited{}, nil }}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := k.For("key").Acquire(done, Cost{1}); err != context.Canceled {
		t.Error(err)
	}
}

// A permit of a Keyed inside of a Keyed keeps the limiters of both.
func TestKeyed_NestedCountsPermitsInBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &Keyed[string]{Max: 1, New: perTenant}
		outer := &Keyed[string]{Max: 1, New: func(key string) (Limiter, error) { return inner.For(key), nil }}
		p := mustAcquire(t, outer.For("a"))
		time.Sleep(time.Minute)
		for _, k := range []*Keyed[string]{inner, outer} {
			noRoom(t, k.For("b"), "while the permit is in use")
		}
		p.Done()
		mustAcquire(t, outer.For("b")).Done()
		time.Sleep(time.Second)
		mustAcquire(t, inner.For("c")).Done()
	})
}

// One bucket may serve many keys, also when their limiters are dropped.
func TestKeyed_OneBucketOfManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := Must(NewBucket("plan", Limit{Capacity: 1, LeakRate: 10}))
		k := &Keyed[int]{Max: 2, New: func(int) (Limiter, error) { return plan, nil }}
		for i := range 50 {
			p := mustAcquire(t, k.For(i))
			refused(t, k.For(i-1), Cost{1})
			p.Done()
			time.Sleep(time.Second)
		}
		if n := int(plan.keys.Load()); n != k.Len() {
			t.Errorf("%d limiters are counted, want %d", n, k.Len())
		}
	})
}

// The memory that a Keyed of buckets takes for each key, the bytes of the key itself excepted.
func TestKeyed_KeyTakesAtMost190Bytes(t *testing.T) {
	if n := unsafe.Sizeof(Bucket{}); n > 96 {
		t.Errorf("a Bucket takes %d bytes", n)
	}
	keys := benchKeys(30_000)
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	k := &Keyed[string]{New: perTenant, Max: len(keys)}
	for _, key := range keys {
		mustAcquire(t, k.For(key)).Done()
	}
	if b := (heap() - before) / float64(k.Len()); b > 190 {
		t.Errorf("%.1f bytes for each of 30 000 keys", b)
	}
	runtime.KeepAlive(keys)
}

// A call of a known key allocates nothing.
func TestKeyed_AcquireAllocatesNothing(t *testing.T) {
	k := &Keyed[string]{New: fast}
	mustAcquire(t, k.For("key")).Done()
	if n := testing.AllocsPerRun(100, func() {
		p, _ := k.Acquire(ctx, "key", Cost{1})
		p.Done()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Use calls f with the limiter of a key, and keeps a limiter whose limits f has set.
func TestKeyed_Use(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Keyed[string]{Max: 2, Overflow: Unlimited{}, New: func(key string) (Limiter, error) {
			switch key {
			case "bad":
				return nil, ErrInvalid
			case "yours":
				return Unlimited{}, nil
			}
			return NewBucket(key, Limit{Capacity: 10, LeakRate: 10})
		}}
		must(t, k.Use("acme", func(l Limiter) error { return l.(*Bucket).SetLimits(ctx, Limit{Capacity: 1, LeakRate: 1}) }))
		time.Sleep(time.Hour)
		for range 30 { // other keys come, more than there is room for
			for _, key := range []string{"a", "b", "c"} {
				admit(t, k.For(key), 0.1)
			}
		}
		mustAcquire(t, k.For("acme"))
		refused(t, k.For("acme"), Cost{1}) // by the limit that was set
		must(t, k.Use("acme", func(l Limiter) error { return l.(*Bucket).Hold(ctx, time.Minute) }))
		refused(t, k.For("acme"), Cost{Free})
		none := func(l Limiter) error { t.Errorf("called with %v", l); return nil }
		if err := k.Use("c", none); !errors.Is(err, ErrFull) {
			t.Errorf("all limiters are in use: %v", err)
		}
		time.Sleep(time.Hour)
		mine := errors.New("mine")
		if err := k.Use("yours", func(l Limiter) error {
			if l != (Unlimited{}) {
				t.Errorf("%T", l)
			}
			return mine
		}); err != mine {
			t.Errorf("%v", err)
		}
		for _, err := range []error{k.Use("bad", none), k.Use("acme", nil), (*Keyed[string])(nil).Use("acme", none), new(Keyed[string]).Use("acme", none)} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%v", err)
			}
		}
	})
}

func perTenant(key string) (Limiter, error) { return NewBucket(key, PerSecond(10)) }

func fast(key string) (Limiter, error) { return NewBucket(key, Limit{Capacity: 1e9, LeakRate: 1e9}) }

func benchKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("tenant-%07d", i)
	}
	return keys
}

// BenchmarkKeyed is a decision for one of so many keys, its Done included.
func BenchmarkKeyed(b *testing.B) {
	for _, n := range []int{1, 1_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			keys, order := benchKeys(n), make([]int32, 1<<20) // an order that no cache foresees
			for i := range order {
				order[i] = int32(rand.IntN(n))
			}
			k := &Keyed[string]{New: fast, Max: n}
			for _, key := range keys {
				_, err := k.Acquire(ctx, key, Cost{1})
				must(b, err)
			}
			runtime.GC()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p, err := k.Acquire(ctx, keys[order[i&(1<<20-1)]], Cost{1})
				if err != nil {
					b.Fatal(err)
				}
				p.Done()
			}
		})
	}
}
