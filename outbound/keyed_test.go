package outbound

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/dripfeed/dripfeed/outbound/store"
)

func unlimited[K any](K) (Limiter, error) { return Unlimited{}, nil }

// A key has one limiter, and a call of it an error if that cannot be made.
func TestKeyed_Limiters(t *testing.T) {
	t.Run("Each key has a limiter of its own. Keys are compared as Go compares them, whatever their type", func(t *testing.T) {
		keys := &Keyed[string]{New: func(key string) (Limiter, error) { return NewBucket(key, PerHour(1)) }}
		named := &Keyed[string]{New: func(string) (Limiter, error) { return NewBucket("one name", PerHour(1)) }}
		numbers := &Keyed[int]{New: func(int) (Limiter, error) { return NewBucket("7", PerHour(1)) }}
		any7 := &Keyed[any]{New: func(key any) (Limiter, error) { return NewBucket(fmt.Sprint(key), PerHour(1)) }}
		once := func(l Limiter, key string) {
			mustAcquire(t, l).Done()
			equal(t, refused(t, l, Cost{1}).Key, key, "the key of the second call of %q", key)
		}
		for _, key := range []string{"a", "b", "", "a\x00", "\xff"} {
			once(keys.For(key), key)
		}
		for i := range 100 {
			once(named.For(strconv.Itoa(i)), "one name")
			once(numbers.For(i), "7")
			once(any7.For(i), strconv.Itoa(i))
			once(any7.For(strconv.Itoa(i)), strconv.Itoa(i))
		}
		equal(t, [4]int{keys.Len(), named.Len(), numbers.Len(), any7.Len()}, [4]int{5, 100, 100, 200}, "the limiters")
	})
	t.Run("Concurrent first calls of a key get one limiter", func(t *testing.T) {
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
			fatalIf(t, admitted.Load() != 1 || k.Len() != 1,
				"%d admitted, %d limiters, want 1 and 1", admitted.Load(), k.Len())
		}
	})
	t.Run("Calls of a new key are refused when all limiters are in use, or go to Overflow", func(t *testing.T) {
		k := &Keyed[string]{New: perTenant, Max: 2}
		defer mustAcquire(t, k.For("a")).Done()
		defer mustAcquire(t, k.For("b")).Done()
		full := refused(t, k.For("c"), Cost{1})
		errorIf(t, !errors.Is(full, ErrFull) || full.RetryAfter != 0 || full.Error() != "outbound: rate limited: too many keys: 2 are in use",
			"without Overflow: %v", full)
		k.Overflow = Must(NewBucket("overflow", PerHour(1)))
		mustAcquire(t, k.For("c")).Done()
		full = refused(t, k.For("d"), Cost{1})
		errorIf(t, full.Key != "overflow" || k.Len() != 2, "second key beyond Max, with %d limiters: %v", k.Len(), full)
	})
	t.Run("A key that does not equal itself is an error, also inside of a struct", func(t *testing.T) {
		floats := &Keyed[float64]{New: unlimited[float64], Overflow: Unlimited{}}
		type pair struct {
			name string
			x    float64
		}
		pairs := &Keyed[pair]{New: unlimited[pair]}
		for _, l := range []Limiter{floats.For(math.NaN()), pairs.For(pair{"secret", math.NaN()})} {
			_, err := l.Acquire(ctx, Cost{1})
			errorIf(t, !errors.Is(err, ErrInvalid) || errors.Is(err, ErrThrottled), "NaN: %v", err)
		}
		mustAcquire(t, floats.For(math.Copysign(0, -1))).Done()
		mustAcquire(t, floats.For(0)).Done()
		mustAcquire(t, floats.For(math.Inf(1))).Done()
		errorIf(t, floats.Len() != 2 || pairs.Len() != 0, "%d and %d limiters, want 2 and 0", floats.Len(), pairs.Len())
	})
	t.Run("A New that fails is an error, and keeps no limiter", func(t *testing.T) {
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
				_, err := c.keyed.For("key").Acquire(ctx, Cost{1})
				errorIf(t, !errors.Is(err, c.want) || errors.Is(err, ErrThrottled), "%s: %v, want %v", what, err, c.want)
			}
			errorIf(t, c.keyed.Len() != 0, "%s: %d limiters", what, c.keyed.Len())
		}
	})
	t.Run("A panic of New reaches the caller, and the next call makes the limiter, unless its ctx has ended", func(t *testing.T) {
		ready := false
		k := &Keyed[string]{Max: 1, New: func(key string) (Limiter, error) {
			if !ready {
				panic("new")
			}
			return perTenant(key)
		}}
		func() {
			defer func() { equal[any](t, recover(), "new", "the panic") }()
			_, _ = k.For("key").Acquire(ctx, Cost{1})
		}()
		ended, cancel := context.WithCancel(ctx)
		cancel()
		equal(t, errOf(k.For("key").Acquire(ended, Cost{1})), context.Canceled, "the error of a call that has ended")
		equal(t, k.Len(), 0, "limiters")
		ready = true
		mustAcquire(t, k.For("key")).Done()
	})
	bubble(t, "A permit of a Keyed inside of a Keyed keeps the limiters of both", func(t *testing.T) {
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
	bubble(t, "One bucket may serve many keys, also when their limiters are dropped", func(t *testing.T) {
		plan := Must(NewBucket("plan", Limit{Capacity: 1, LeakRate: 10}))
		k := &Keyed[int]{Max: 2, New: func(int) (Limiter, error) { return plan, nil }}
		for i := range 50 {
			p := mustAcquire(t, k.For(i))
			refused(t, k.For(i-1), Cost{1})
			p.Done()
			time.Sleep(time.Second)
		}
		equal(t, int(plan.core.Keys.Load()), k.Len(), "limiters are counted")
	})
	t.Run("A call of a known key allocates nothing, and a Keyed without a Label passes errors on without an allocation", func(t *testing.T) {
		known, fails := &Keyed[string]{New: fast}, failing(&ThrottledError{Key: "key"}, nil)
		mustAcquire(t, known.For("key")).Done()
		equal(t, testing.AllocsPerRun(1000, func() {
			p, _ := known.Acquire(ctx, "key", Cost{1})
			p.Done()
			_, _ = fails.Acquire(ctx, "key", Cost{1})
		}), 0, "allocations")
	})
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
				errorIf(t, err != nil && !errors.Is(err, ErrFull), "%v", err)
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
	errorIf(t, busy.Len() != 100, "%d busy limiters, want 100", busy.Len())
}

// The memory that a Keyed of buckets takes for each key, the bytes of the key itself excepted.
func TestKeyed_KeyTakesAtMost190Bytes(t *testing.T) {
	n := unsafe.Sizeof(Bucket{})
	errorIf(t, n > 96, "a Bucket takes %d bytes", n)
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
	b := (heap() - before) / float64(k.Len())
	errorIf(t, b > 190, "%.1f bytes for each of 30 000 keys", b)
	runtime.KeepAlive(keys)
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
		err := k.Use("c", none)
		errorIf(t, !errors.Is(err, ErrFull), "all limiters are in use: %v", err)
		time.Sleep(time.Hour)
		mine := errors.New("mine")
		if err := k.Use("yours", func(l Limiter) error {
			errorIf(t, l != (Unlimited{}), "%T", l)
			return mine
		}); err != mine {
			t.Errorf("%v", err)
		}
		for _, err := range []error{k.Use("bad", none), k.Use("acme", nil), (*Keyed[string])(nil).Use("acme", none), new(Keyed[string]).Use("acme", none)} {
			errorIf(t, !errors.Is(err, ErrInvalid), "%v", err)
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

type tenantID string

// All yields every key with its limiter, whatever their types.
func TestKeyed_AllYieldsEachKey(t *testing.T) {
	var none *Keyed[int]
	for range none.All() {
		t.Error("nil has a key")
	}
	k := &Keyed[string]{New: func(key string) (Limiter, error) {
		switch key[0] {
		case 'b': // bears another key
			return NewBucket("bucket", PerSecond(10))
		case 'u':
			return Unlimited{}, nil
		}
		return NewBucket(key, PerSecond(10))
	}}
	for range k.All() {
		t.Error("an unused one has a key")
	}
	want := map[string]Limiter{}
	for i := range 300 {
		key := string("abu"[i%3]) + strconv.Itoa(i)
		mustAcquire(t, k.For(key)) // an unused limiter is dropped
		must(t, k.Use(key, func(l Limiter) error { want[key] = l; return nil }))
	}
	got := maps.Collect(k.All())
	errorIf(t, !maps.Equal(got, want), "%d keys of %d", len(got), len(want))
	n := 0
	for range k.All() {
		if n++; n == 5 {
			break
		}
	}
	errorIf(t, n != 5, "%d keys until the break", n)
	ids := &Keyed[tenantID]{New: func(id tenantID) (Limiter, error) { return NewBucket(string(id), PerSecond(10)) }}
	mustAcquire(t, ids.For("a"))
	for id, l := range ids.All() {
		b, ok := l.(*Bucket)
		errorIf(t, id != "a" || !ok || b.Key() != "a", "%v: %v", id, l)
	}
}

// While calls make and drop limiters, All yields each key with its own limiter.
func TestKeyed_AllDuringChanges(t *testing.T) {
	k := &Keyed[string]{Max: 200, New: func(key string) (Limiter, error) { return NewBucket(key, PerSecond(10)) }}
	var stop atomic.Bool
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := 0; !stop.Load(); i++ {
				_, _ = k.Acquire(t.Context(), fmt.Sprint(w, " ", i%500), Cost{})
			}
		})
	}
	for range 200 {
		n := 0
		for key, l := range k.All() {
			b := l.(*Bucket)
			errorIf(t, b.Key() != key, "%q has the limiter of %q", key, b.Key())
			n++
		}
		errorIf(t, n > 2*k.Max, "%d keys of at most %d", n, k.Max)
	}
	stop.Store(true)
	all.Wait()
}

// wrapping is a foreign limiter, whose errors are its own.
type wrapping struct{ Limiter }

var errTenant = errors.New("of a tenant")

func (w wrapping) Acquire(ctx context.Context, c Cost) (Permit, error) {
	p, err := w.Limiter.Acquire(ctx, c)
	if err != nil {
		err = fmt.Errorf("%w: %w", errTenant, err)
	}
	return p, err
}

// Errors and events show a key's label in place of the key, also in errors that wrap others.
func TestKeyedLabel_StandsInErrorsAndEvents(t *testing.T) {
	const secret, tenant = "sk-live-0123456789", "the first tenant"
	down := StoreFunc(func(context.Context, string, *store.Op) (store.Reply, error) { return store.Reply{}, errCut })
	hour, second := PerHour(1), PerSecond(9).Of(0, "second")
	for name, c := range map[string]struct {
		store  store.Store
		limits []Limit
		cost   float64
		want   error
	}{
		"over the limit":      {nil, []Limit{hour}, 1, ErrThrottled},
		"over one limit":      {nil, []Limit{hour, second}, 1, ErrThrottled},
		"a cost too large":    {nil, []Limit{hour}, 2, ErrTooLarge},
		"a limit of nothing":  {nil, []Limit{{}}, 1, ErrInvalid},
		"no limit":            {nil, nil, 1, ErrInvalid},
		"a store unavailable": {down, []Limit{hour}, 1, store.ErrUnavailable},
	} {
		for _, wraps := range []bool{false, true} {
			for _, label := range []func(string) string{nil, func(string) string { return tenant }} {
				t.Run(fmt.Sprintf("%s, wrapped %v, label %v", name, wraps, label != nil), func(t *testing.T) {
					keyed := &Keyed[string]{Label: label, New: func(key string) (Limiter, error) {
						b, err := NewBucket(key, c.limits...)
						if c.store != nil {
							b, err = NewSharedBucket(c.store, key, c.limits...)
						}
						if wraps && err != nil {
							return nil, fmt.Errorf("%w: %w", errTenant, err)
						} else if wraps {
							return wrapping{b}, nil
						}
						return b, err
					}}
					var event, err error
					observed := Observe(keyed.For(secret), "", func(_ context.Context, e Event) { event = e.Err })
					for range 2 { // the first call takes all units
						_, err = observed.Acquire(ctx, Cost{c.cost})
					}
					fatalIf(t, !errors.Is(err, c.want) || !errors.Is(event, c.want) || errors.Is(err, errTenant) != wraps,
						"%v, in the event %v, not %v", err, event, c.want)
					for _, text := range []string{err.Error(), event.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
						shown := strings.Contains(text, secret)
						errorIf(t, shown != (label == nil) || !strings.HasPrefix(text, "&") && strings.Contains(text, tenant) == shown,
							"%v", text)
					}
					if full, ok := errors.AsType[*ThrottledError](err); ok && label != nil {
						equal(t, full.Key, tenant, "its key")
					}
				})
			}
		}
	}
}

// A label stands in errors that have a key, and in no others.
func TestKeyedLabel_InErrors(t *testing.T) {
	t.Run("An error without a bucket's key stays as New has made it", func(t *testing.T) {
		keyed := &Keyed[string]{
			Label: func(string) string { return "label" },
			New:   func(string) (Limiter, error) { return nil, errTenant },
		}
		_, err := keyed.Acquire(ctx, "k", Cost{1})
		errorIf(t, err != errTenant, "%v", err)
	})
	t.Run("A refusal shows at most 64 bytes of a key", func(t *testing.T) {
		for key, want := range map[string]string{
			strings.Repeat("x", 64):             `"` + strings.Repeat("x", 64) + `"`,
			strings.Repeat("x", 65):             `"` + strings.Repeat("x", 64) + `"…`,
			"a\nb" + strings.Repeat("\x00", 70): `"a\nb` + strings.Repeat(`\x00`, 61) + `"…`,
		} {
			text := (&ThrottledError{Key: key}).Error()
			errorIf(t, text != "outbound: rate limited: "+want, "%v", text)
		}
	})
	t.Run("A program finds its own error in one with a label", func(t *testing.T) {
		refusal := &ThrottledError{Key: "secret"}
		own := embedding{refusal, []string{"later"}}
		for name, err := range map[string]error{
			"wrapped in a store's": fmt.Errorf("x: %w", &StoreError{Key: "secret", Err: refusal}),
			"embedded":             own,
			"embedded, a pointer":  &own,
			"wrapped and embedded": fmt.Errorf("x: %w", own),
		} {
			_, got := failing(err, func(string) string { return "label" }).Acquire(ctx, "secret", Cost{1})
			var throttled *ThrottledError
			if errors.As(err, &throttled) { // else it is the limiter's own error
				errorIf(t, strings.Contains(got.Error(), "secret") || !errors.As(got, &throttled) || throttled.Key != "label",
					"%s: %v, the refusal's key is %q", name, got, throttled.Key)
			}
			var value embedding
			var pointer *embedding
			errorIf(t, errors.As(err, &value) != errors.As(got, &value) || errors.As(err, &pointer) != errors.As(got, &pointer),
				"%s: the program does not find its own error in %v", name, got)
		}
	})
	t.Run("An error of what uses the limiter, such as that of a booking, has the label, too", func(t *testing.T) {
		k := &Keyed[string]{Label: func(string) string { return "label" }, New: func(key string) (Limiter, error) {
			return NewBucket(key, Limit{Capacity: 1, LeakRate: 1})
		}}
		err := k.Use("secret", func(l Limiter) error { return l.(*Bucket).Book(ctx, &BookRequest{Costs: []Cost{{2}}}) })
		bad, ok := errors.AsType[*CostError](err)
		errorIf(t, !ok || bad.Key != "label" || strings.Contains(err.Error(), "secret"), "%v", err)
		must(t, k.Use("secret", func(Limiter) error { return nil }))
	})
}

// failing returns a Keyed whose limiters fail with err.
func failing(err error, label func(string) string) *Keyed[string] {
	return &Keyed[string]{Label: label, New: func(string) (Limiter, error) {
		return limiterFunc(func(context.Context, Cost) (Permit, error) { return Permit{}, err }), nil
	}}
}

// embedding is a program's own error, which no program can compare with ==.
type embedding struct {
	*ThrottledError
	hints []string
}

// As finds the outermost limiter of a type, as errors.As does, but not the limiters of a Keyed.
func TestAs_FindsALimiterInOthers(t *testing.T) {
	hear := func(context.Context, Event) {}
	b := Must(NewBucket("b", PerSecond(1)))
	inner := Observe(b, "inner", hear)
	outer := Observe(inner, "outer", hear)
	for _, l := range []Limiter{b, inner, outer} {
		got, ok := As[*Bucket](l)
		errorIf(t, !ok || got != b, "%T: %v, %v", l, got, ok)
	}
	got, ok := As[*observer](outer)
	errorIf(t, !ok || got != outer, "it is not the outermost of its type")
	_, ok = As[interface{ Explain() }](outer)
	errorIf(t, ok, "found a type that is not there")
	tenants := &Keyed[string]{New: func(string) (Limiter, error) { return b, nil }}
	for _, l := range []Limiter{nil, limiterFunc(nil), Observe(nil, "", hear), tenants.For("acme")} {
		got, ok := As[*Bucket](l)
		errorIf(t, ok || got != nil, "in a %T: %v", l, got)
	}
}

// The handle of a key gives access to its limiter only during a call of Use, because the limiter may be dropped.
func TestKeyed_HandleUsesItsKeysLimiter(t *testing.T) {
	made := 0
	tenants := &Keyed[string]{New: func(key string) (Limiter, error) {
		made++
		return NewBucket(key, PerSecond(1))
	}}
	errorIf(t, tenants.For("acme") != tenants.For("acme") || tenants.For("acme") == tenants.For("bolt"),
		"the handles of one key are not equal, or those of two are")
	u, ok := As[interface {
		Use(func(Limiter) error) error
	}](Observe(tenants.For("acme"), "", func(context.Context, Event) {}))
	fatalIf(t, !ok || made != 0, "found %v, made %d", ok, made)
	if err := u.Use(func(l Limiter) error {
		errorIf(t, l.(*Bucket).Key() != "acme", "another key's limiter")
		return store.ErrUnavailable
	}); err != store.ErrUnavailable {
		t.Error(err)
	}
}
