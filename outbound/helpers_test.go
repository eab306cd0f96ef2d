package outbound

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

const (
	jitter  = spec.Jitter // what the network may take off the distance of two calls
	maxWait = key.Forever
)

func later(t, d time.Duration) time.Duration { return key.Later(t, d) }

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// fatalIf reports a fault, and ends the test.
func fatalIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// equal reports the value that the words name if it is another than want.
func equal[T comparable](t testing.TB, got, want T, words string, args ...any) {
	if got != want {
		t.Helper()
		t.Errorf("%s: %v, want %v", fmt.Sprintf(words, args...), got, want)
	}
}

// errorIs reports an error that is not want, which may be nil.
func errorIs(t testing.TB, err, want error, words string, args ...any) {
	if !errors.Is(err, want) {
		t.Helper()
		t.Errorf("%s: %v, want %v", fmt.Sprintf(words, args...), err, want)
	}
}

// errOf returns the error of a call that returns a value as well.
func errOf[T any](_ T, err error) error { return err }

// bubble runs a subtest in fake time.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// admit makes a call of these units that l must admit.
func admit(t testing.TB, l Limiter, units ...float64) Permit {
	t.Helper()
	var c Cost
	copy(c[:], units)
	p, err := l.Acquire(ctx, c)
	must(t, err)
	return p
}

// mustAcquire makes a call of one unit that l must admit.
func mustAcquire(t *testing.T, l Limiter) *Permit {
	t.Helper()
	p := admit(t, l, 1)
	return &p
}

// book makes a booking that must succeed, and returns it.
func book(t testing.TB, b *Bucket, k BookRequest) BookRequest {
	t.Helper()
	must(t, b.Book(ctx, &k))
	return k
}

// refused makes a call that l must refuse, and returns the refusal.
func refused(t *testing.T, l Limiter, c Cost) *ThrottledError {
	t.Helper()
	_, err := l.Acquire(ctx, c)
	full, ok := errors.AsType[*ThrottledError](err)
	if !ok {
		t.Errorf("%v is no refusal", err)
		return new(ThrottledError)
	}
	return full
}

// states returns those of a bucket, which must make sense.
func states(t *testing.T, b *Bucket) []State {
	t.Helper()
	all, err := b.States(ctx)
	must(t, err)
	for _, s := range all {
		if !(s.Level >= 0 && s.Level < 1e15) || s.Remaining < 0 || s.EmptyIn < 0 || s.NextIn < 0 || s.HeldFor < 0 {
			t.Fatalf("%s: %+v", b.Key(), s)
		}
	}
	return all
}

// level returns that of the limit at an index.
func level(t *testing.T, b *Bucket, i int) float64 {
	t.Helper()
	return states(t, b)[i].Level
}

// These are the helpers for tests outside of the package.
var (
	BothWays = bothWays
	NoError  = must
	ErrorIf  = errorIf
	FatalIf  = fatalIf
)

// levels returns those of the first two limits.
func levels(t *testing.T, b *Bucket) [2]float64 {
	t.Helper()
	s := states(t, b)
	return [2]float64{s[0].Level, s[1].Level}
}

// inBoth runs a scenario with a bucket in this process, and with one in a store. Its name says what holds.
func inBoth(t *testing.T, name string, f func(t *testing.T, b *Bucket), limits ...Limit) {
	t.Run(name, func(t *testing.T) { bothWays(t, f, limits...) })
}

// bothWays runs f with a bucket in this process, and with one in a store.
func bothWays(t *testing.T, f func(t *testing.T, b *Bucket), limits ...Limit) {
	t.Helper()
	bubble(t, "in memory", func(t *testing.T) { f(t, Must(NewBucket("k", limits...))) })
	bubble(t, "shared", func(t *testing.T) { f(t, Must(NewSharedBucket(store.NewMemory(), "k", limits...))) })
}

// StoreFunc is a store that is a function.
type StoreFunc func(ctx context.Context, key string, op *store.Op) (store.Reply, error)

func (f StoreFunc) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	return f(ctx, key, op)
}

// FakeStore is a store whose requests a test counts, delays and loses. The zero value is empty and ready.
type FakeStore struct {
	Way, Back time.Duration // how long a request and its reply take, unless ctx ends before
	Requests  atomic.Int64

	mu      sync.Mutex // protects what follows
	keys    map[string]*store.Stored
	until   map[string]time.Duration // when each key may be dropped
	fails   error
	carries bool
}

func (f *FakeStore) Update(ctx context.Context, key string, op *store.Op) (r store.Reply, err error) {
	f.Requests.Add(1)
	if err = sleep(ctx, f.Way); err == nil {
		r, err = f.Apply(key, op)
	}
	if err == nil {
		err = sleep(ctx, f.Back)
	}
	if err != nil {
		return store.Reply{}, err
	}
	return r, nil
}

// Apply is an Update that takes no time and is not counted.
func (f *FakeStore) Apply(key string, op *store.Op) (store.Reply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var is store.Stored
	if kept := f.keys[key]; kept != nil {
		is = kept.Clone()
	}
	r := op.ApplyAt(&is, now(), calendar.Stamp(time.Now()))
	if f.fails == nil || f.carries {
		if f.keys == nil {
			f.keys, f.until = map[string]*store.Stored{}, map[string]time.Duration{}
		}
		f.keys[key], f.until[key] = &is, later(now(), r.Expire)
	}
	return r, f.fails
}

// Fail has all requests from now on fail with err. They are computed first, and kept if carries is true.
// If err is nil, requests succeed again.
func (f *FakeStore) Fail(err error, carries bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails, f.carries = err, carries
}

// Lose drops all keys.
func (f *FakeStore) Lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.keys)
}

// Lasts returns when the key may be dropped.
func (f *FakeStore) Lasts(key string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.until[key]
}

// sleep returns the error of ctx if that ends before d has passed.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
