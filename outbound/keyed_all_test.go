package outbound

import (
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

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
	if got := maps.Collect(k.All()); !maps.Equal(got, want) {
		t.Errorf("%d keys of %d", len(got), len(want))
	}
	n := 0
	for range k.All() {
		if n++; n == 5 {
			break
		}
	}
	if n != 5 {
		t.Errorf("%d keys until the break", n)
	}
	ids := &Keyed[tenantID]{New: func(id tenantID) (Limiter, error) { return NewBucket(string(id), PerSecond(10)) }}
	mustAcquire(t, ids.For("a"))
	for id, l := range ids.All() {
		if b, ok := l.(*Bucket); id != "a" || !ok || b.Key() != "a" {
			t.Errorf("%v: %v", id, l)
		}
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
			if b := l.(*Bucket); b.Key() != key {
				t.Errorf("%q has the limiter of %q", key, b.Key())
			}
			n++
		}
		if n > 2*k.Max {
			t.Errorf("%d keys of at most %d", n, k.Max)
		}
	}
	stop.Store(true)
	all.Wait()
}
