package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// watched is a bucket whose trips the test counts.
type watched struct {
	*outbound.Bucket
	*testing.T
	key   string
	store leak.Store
	proxy *redistest.Proxy
	rdb   *redis.Client // does not go through the proxy
}

func watch(t *testing.T, limits ...outbound.Limit) *watched {
	server := redistest.Shared(t)
	proxy := redistest.NewProxy(t, server.Addr())
	w := &watched{T: t, proxy: proxy, rdb: server.Client(t), key: fmt.Sprint("refusal:", rand.Uint64())}
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ReadTimeout: time.Minute}) // a busy machine may stall for seconds
	t.Cleanup(func() { _ = rdb.Close() })
	w.store = redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	w.Bucket = outbound.Must(outbound.NewSharedBucket(punctual(w.store), w.key, limits...))
	return w
}

// punctual wraps a store so that no answer is late, however busy the machine is. A late
// answer costs another trip, and after some of them the call.
func punctual(s leak.Store) leak.Store {
	return storeFunc(func(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
		r, err := s.Update(ctx, key, op)
		r.When = time.Time{}
		return r, err
	})
}

// other returns the same bucket in another process.
func (w *watched) other(limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewSharedBucket(redisstore.New(w.rdb, redisstore.Config{Timeout: time.Minute}), w.key, limits...))
}

func (w *watched) take(n float64) outbound.Permit {
	w.Helper()
	p, err := w.Acquire(w.Context(), outbound.Cost{n})
	require.NoError(w, err)
	return p
}

func (w *watched) refused(n float64) *outbound.ThrottledError {
	w.Helper()
	_, err := w.Acquire(w.Context(), outbound.Cost{n})
	var full *outbound.ThrottledError
	require.ErrorAs(w, err, &full)
	return full
}

// trips returns how many trips f takes.
func (w *watched) trips(f func()) int {
	before := w.proxy.Counts().Requests
	f()
	return w.proxy.Counts().Requests - before
}

var slowly = outbound.Limit{Capacity: 10, LeakRate: 0.01}

func TestARefusalIsRepeatedWithoutATrip(t *testing.T) {
	t.Parallel()
	w := watch(t, slowly)
	w.take(8)
	began := time.Now()
	last := w.refused(5).RetryAfter
	trips := w.trips(func() {
		for i := range 1000 {
			var full *outbound.ThrottledError
			if w.trips(func() { full = w.refused(5 + float64(i%3)) }) == 0 {
				require.LessOrEqual(t, full.RetryAfter, last)
			}
			last = full.RetryAfter
		}
	})
	// The store remembers it for a second, so on a busy machine that may end.
	require.LessOrEqual(t, trips, int(time.Since(began)/time.Second))
	require.Equal(t, 1, w.trips(func() { w.take(2) }), "a cheaper call fits")
}

func TestARefusalEndsOnTime(t *testing.T) {
	t.Parallel()
	w := watch(t, outbound.Limit{Capacity: 1, LeakRate: 20})
	for range 10 {
		var full *outbound.ThrottledError
		for {
			_, err := w.Acquire(t.Context(), outbound.Cost{1})
			if errors.As(err, &full) {
				break
			}
			require.NoError(t, err)
		}
		time.Sleep(full.RetryAfter + time.Millisecond)
		w.take(1)
	}
}

func TestARefusalIsForgottenWhenRoomIsMadeHere(t *testing.T) {
	t.Parallel()
	for name, room := range map[string]func(w *watched, p *outbound.Permit){
		"settle": func(_ *watched, p *outbound.Permit) { p.Settle(outbound.Cost{1}) },
		"resume": func(w *watched, _ *outbound.Permit) { require.NoError(w, w.Resume(w.Context())) },
		"set limits": func(w *watched, _ *outbound.Permit) {
			require.NoError(w, w.SetLimits(w.Context(), outbound.Limit{Capacity: 30, LeakRate: 1}))
		},
	} {
		w := watch(t, slowly)
		p := w.take(10)
		w.refused(5)
		require.Equal(t, 2, w.trips(func() {
			room(w, &p)
			if name == "resume" {
				w.refused(5) // nothing refills, but the store asks anew
			} else {
				w.take(5)
			}
		}), name)
	}
}

func TestRoomMadeByOthersIsFoundWithinASecond(t *testing.T) {
	t.Parallel()
	w := watch(t, slowly)
	other := w.other(slowly)
	p, err := other.Acquire(t.Context(), outbound.Cost{10})
	require.NoError(t, err)
	w.refused(5)
	began := time.Now()
	p.Settle(outbound.Cost{})
	require.Eventually(t, func() bool {
		_, err := w.Acquire(t.Context(), outbound.Cost{5})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	t.Log("after", time.Since(began))
}

func TestARefusalOfOneBucketIsNotAnothers(t *testing.T) {
	t.Parallel()
	w := watch(t, slowly)
	w.take(10)
	w.refused(5)
	large := outbound.Must(outbound.NewSharedBucket(w.store, w.key, outbound.Limit{Capacity: 100, LeakRate: 0.01}))
	_, err := large.Acquire(t.Context(), outbound.Cost{5}) // another bucket of the same key, with other limits
	require.NoError(t, err)
	for i, c := range []outbound.Cost{{}, {-1}, {1000}} { // the store tells impossible costs apart
		_, err := w.Acquire(t.Context(), c)
		require.NotErrorIs(t, err, outbound.ErrThrottled, i)
	}
}

func BenchmarkRememberedRefusal(b *testing.B) {
	s := redisstore.New(redistest.Shared(b).Client(b), redisstore.Config{})
	bucket := outbound.Must(outbound.NewSharedBucket(s, fmt.Sprint(b.Name(), rand.Uint64()), slowly))
	if _, err := bucket.Acquire(b.Context(), outbound.Cost{10}); err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	for b.Loop() {
		if _, err := bucket.Acquire(ctx, outbound.Cost{1}); err == nil {
			b.Fatal("it was admitted")
		}
	}
}

func TestACallerWhoGivesUpReturnsAtOnceAndPaysNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	proxy := redistest.NewProxy(t, server.Addr())
	a := newAccount(t, server.Client(t), "gone")
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = rdb.Close() })
	b := a.bucket(t, redisstore.New(rdb, redisstore.Config{Timeout: time.Minute}))
	_, err := b.State(t.Context())
	require.NoError(t, err)
	const delay = 2 * time.Second
	proxy.Set(redistest.Faults{Delay: delay, Only: ofScripts})
	var stayed, went atomic.Int64
	many(40, 40, func(_, g int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if g%2 == 0 {
			time.AfterFunc(time.Duration(g)*time.Millisecond, cancel)
		}
		began := time.Now()
		var err error
		if g%4 < 2 {
			for again := true; again; { // a busy machine may take an answer in too late to be used: it goes back
				_, err = b.Acquire(ctx, outbound.Cost{1})
				again = errors.As(err, new(*outbound.StoreError)) && ctx.Err() == nil
			}
		} else { // alone in its request
			k := outbound.Booking{Costs: []outbound.Cost{{1}, {1}}, Wait: time.Second}
			err = b.Book(ctx, &k)
		}
		switch {
		case err == nil && g%4 < 2:
			stayed.Add(1)
		case err == nil:
			stayed.Add(2)
		default:
			require.ErrorIs(t, err, context.Canceled)
			require.Less(t, time.Since(began), delay)
			went.Add(1)
		}
		if went.Load() == 20 {
			proxy.Set(redistest.Faults{}) // faults off for the rest
		}
	})
	require.EqualValues(t, 20, went.Load())
	require.EqualValues(t, 30, stayed.Load())
	require.Eventually(t, func() bool {
		charged := a.charged(t)
		return charged > 29.9 && charged < 30.1
	}, time.Minute, 20*time.Millisecond)
	time.Sleep(50 * time.Millisecond)
	require.InDelta(t, 30, a.charged(t), 0.1)
}

func TestABookingOfACallerWhoHasGoneComesBack(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	proxy := redistest.NewProxy(t, server.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = rdb.Close() })
	s := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	for _, together := range []bool{false, true} {
		a := newAccount(t, server.Client(t), "left")
		b := a.bucket(t, s)
		_, err := b.State(t.Context())
		require.NoError(t, err)
		sent := make(chan struct{}, 1)
		proxy.Set(redistest.Faults{Delay: 500 * time.Millisecond, Only: func(words []string) bool {
			select {
			case sent <- struct{}{}:
			default: // the operations after it
			}
			return true
		}})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-sent // the request is on its way
			cancel()
		}()
		if together {
			err = b.Book(ctx, &outbound.Booking{Costs: []outbound.Cost{{3}, {4}}, Wait: time.Second})
		} else {
			_, err = b.Acquire(ctx, outbound.Cost{7})
		}
		require.Equal(t, context.Canceled, err) // ctx's own error, and no StoreError
		// First the call is charged, and then it comes back.
		require.Eventually(t, func() bool { return a.charged(t) > 6.9 }, time.Minute, time.Millisecond)
		proxy.Set(redistest.Faults{})
		require.Eventually(t, func() bool { return a.charged(t) < 0.1 }, time.Minute, 10*time.Millisecond)
	}
}
