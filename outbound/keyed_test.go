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

func TestKeyed_EachKeyHasItsLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Keyed[string]{New: perTenant}
		for _, key := range []string{"a", "b", "", "a\x00", "\xff"} {
			h := k.For(key)
			mustAcquire(t, h).Done()
			var full *ThrottledError
			if _, err := h.Acquire(ctx, Cost{1}); !errors.As(err, &full) || full.Key != key {
				t.Errorf("second call of %q: %v", key, err)
			}
		}
		if k.Len() != 5 {
			t.Errorf("%d limiters, want 5", k.Len())
		}
	})
}

func TestKeyed_KeysOfAnyType(t *testing.T) {
	named := &Keyed[string]{New: func(string) (Limiter, error) { return NewBucket("one name", PerHour(1)) }}
	numbers := &Keyed[int]{New: func(int) (Limiter, error) { return NewBucket("7", PerHour(1)) }}
	any7 := &Keyed[any]{New: func(key any) (Limiter, error) { return NewBucket(fmt.Sprint(key), PerHour(1)) }}
	for i := range 100 {
		for _, l := range []Limiter{named.For(strconv.Itoa(i)), numbers.For(i), any7.For(i), any7.For(strconv.Itoa(i))} {
			mustAcquire(t, l).Done()
			if _, err := l.Acquire(ctx, Cost{1}); !errors.Is(err, ErrThrottled) {
				t.Fatalf("second call of key %d: %v", i, err)
			}
		}
	}
	if named.Len() != 100 || numbers.Len() != 100 || any7.Len() != 200 {
		t.Errorf("%d, %d, %d limiters, want 100, 100, 200", named.Len(), numbers.Len(), any7.Len())
	}
}

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

func TestKeyed_FullRefusesOrOverflows(t *testing.T) {
	k := &Keyed[string]{New: perTenant, Max: 2}
	defer mustAcquire(t, k.For("a")).Done()
	defer mustAcquire(t, k.For("b")).Done()
	_, err := k.For("c").Acquire(ctx, Cost{1})
	var full *ThrottledError
	if !errors.As(err, &full) || !errors.Is(err, ErrFull) || full.RetryAfter != 0 ||
		err.Error() != "outbound: rate limited: outbound: too many keys: 2 are in use" {
		t.Errorf("without Overflow: %v", err)
	}
	k.Overflow = Must(NewBucket("overflow", PerHour(1)))
	mustAcquire(t, k.For("c")).Done()
	if _, err := k.For("d").Acquire(ctx, Cost{1}); !errors.As(err, &full) || full.Key != "overflow" {
		t.Errorf("second key beyond Max: %v", err)
	}
	if k.Len() != 2 {
		t.Errorf("%d limiters, want 2", k.Len())
	}
}

func TestKeyed_ManyNewKeysStayWithinMax(t *testing.T) {
	k := &Keyed[uint64]{Max: 1000, New: unlimited[uint64]}
	busy := &Keyed[uint64]{Max: 100, New: func(uint64) (Limiter, error) { return NewBucket("", PerHour(1)) }}
	strangers := 200_000
	if raced {
		strangers /= 10
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range strangers / 4 {
				p, err := k.Acquire(ctx, rand.Uint64(), Cost{1})
				if err != nil && !errors.Is(err, ErrFull) {
					t.Error(err)
					return
				}
				p.Done()
				if i%50 > 0 {
					continue
				}
				if _, err := busy.Acquire(ctx, rand.Uint64(), Cost{1}); err != nil && !errors.Is(err, ErrFull) {
					t.Error(err)
					return
				}
				if n, m := k.Len(), busy.Len(); n > 1000 || m > 100 {
					t.Errorf("%d and %d limiters", n, m)
					return
				}
			}
		})
	}
	all.Wait()
	if busy.Len() != 100 {
		t.Errorf("%d busy limiters, want 100", busy.Len())
	}
}

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

func TestKeyed_EndedCtxMakesNoLimiter(t *testing.T) {
	k := &Keyed[string]{New: func(string) (Limiter, error) { t.Error("made"); return Unlimited{}, nil }}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := k.For("key").Acquire(done, Cost{1}); err != context.Canceled {
		t.Error(err)
	}
}

func TestKeyed_NestedCountsPermitsInBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &Keyed[string]{Max: 1, New: perTenant}
		outer := &Keyed[string]{Max: 1, New: func(key string) (Limiter, error) { return inner.For(key), nil }}
		p := mustAcquire(t, outer.For("a"))
		time.Sleep(time.Minute)
		for _, k := range []*Keyed[string]{inner, outer} {
			if _, err := k.For("b").Acquire(ctx, Cost{1}); !errors.Is(err, ErrFull) {
				t.Errorf("while the permit is out: %v", err)
			}
		}
		p.Done()
		mustAcquire(t, outer.For("b")).Done()
		time.Sleep(time.Second)
		mustAcquire(t, inner.For("c")).Done()
	})
}

func TestKeyed_OneBucketOfManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := Must(NewBucket("plan", Limit{Capacity: 1, LeakRate: 10}))
		k := &Keyed[int]{Max: 2, New: func(int) (Limiter, error) { return plan, nil }}
		for i := range 50 {
			p := mustAcquire(t, k.For(i))
			if _, err := k.For(i-1).Acquire(ctx, Cost{1}); !errors.Is(err, ErrThrottled) {
				t.Fatalf("a second call at once: %v", err)
			}
			p.Done()
			time.Sleep(time.Second)
		}
		if n := int(plan.keys.Load()); n != k.Len() {
			t.Errorf("%d limiters are counted, want %d", n, k.Len())
		}
	})
}

func TestBucket_TakesAtMost96Bytes(t *testing.T) {
	if n := unsafe.Sizeof(Bucket{}); n > 96 {
		t.Errorf("%d bytes", n)
	}
}

func TestKeyed_KeyTakesAtMost190Bytes(t *testing.T) {
	if b := keyedBytes(30_000); b > 190 {
		t.Errorf("%.1f bytes for each of 30 000 keys", b)
	}
}

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

func TestKeyed_Use(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		k := &Keyed[string]{Max: 2, Overflow: Unlimited{}, New: func(key string) (Limiter, error) {
			if made++; key == "bad" {
				return nil, ErrInvalid
			}
			if key == "yours" {
				return Unlimited{}, nil
			}
			return NewBucket(key, Limit{Capacity: 10, LeakRate: 10})
		}}
		limits := func(l Limiter) error { return l.(*Bucket).SetLimits(ctx, Limit{Capacity: 1, LeakRate: 1}) }
		if err := k.Use("acme", limits); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		for range 30 { // others come, and there is no room for them
			for _, key := range []string{"a", "b", "c"} {
				if _, err := k.Acquire(ctx, key, Cost{0.1}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := k.Acquire(ctx, "acme", Cost{1}); err != nil {
			t.Error(err)
		}
		if _, err := k.Acquire(ctx, "acme", Cost{1}); !errors.Is(err, ErrThrottled) {
			t.Errorf("the limit that was set is gone: %v", err)
		}
		if err := k.Use("acme", func(l Limiter) error { return l.(*Bucket).Hold(ctx, time.Minute) }); err != nil {
			t.Error(err)
		}
		if _, err := k.Acquire(ctx, "acme", Cost{Free}); !errors.Is(err, ErrThrottled) {
			t.Errorf("not held: %v", err)
		}
		none := func(l Limiter) error { t.Errorf("called with %v", l); return nil }
		if err := k.Use("c", none); !errors.Is(err, ErrFull) {
			t.Errorf("no room: %v", err)
		}
		time.Sleep(time.Hour)
		if err := k.Use("bad", none); !errors.Is(err, ErrInvalid) {
			t.Errorf("bad: %v", err)
		}
		mine := errors.New("mine")
		if err := k.Use("yours", func(l Limiter) error {
			if l != (Unlimited{}) {
				t.Errorf("%T", l)
			}
			return mine
		}); err != mine {
			t.Errorf("%v", err)
		}
		for _, err := range []error{k.Use("acme", nil), (*Keyed[string])(nil).Use("acme", none), new(Keyed[string]).Use("acme", none)} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%v", err)
			}
		}
	})
}
