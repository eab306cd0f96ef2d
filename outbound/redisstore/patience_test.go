package redisstore_test

import (
	"context"
	"encoding/binary"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// between stands between a client and its server, for scripts.
type between func(cmd redis.Cmder, next func() error) error

func (f between) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f between) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(strings.ToLower(cmd.Name()), "eval") {
			return next(ctx, cmd)
		}
		return f(cmd, func() error { return next(ctx, cmd) })
	}
}

func (f between) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// grant answers a request as if the server had booked all that it asks for.
func grant(cmd redis.Cmder) error {
	number := func(b []byte, i int) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:])) }
	args := cmd.Args()
	seq, booked := number(args[5].([]byte), 0), 0.
	for _, a := range args[6:] {
		if b, ok := a.([]byte); ok && b[0] == 'B' {
			booked = number(b[1:], 4)
		}
	}
	now := float64(time.Now().UnixMicro())
	var reply []byte
	for _, x := range []float64{seq, now, now, 0, -2, 0, 0, booked, 0, -1e5, 1, booked, 0, 0, booked, 0} {
		reply = binary.LittleEndian.AppendUint64(reply, math.Float64bits(x))
	}
	cmd.(interface{ SetVal(any) }).SetVal(string(reply))
	return nil
}

// bubble makes a bucket without a server: f answers instead.
func bubble(t *testing.T, f between) *outbound.Bucket {
	return outbound.Must(outbound.NewSharedBucket(bubbleStore(t, redisstore.Config{}, f), "key", outbound.PerSecond(10)))
}

// bubbleStore makes a store without a server: f answers instead.
func bubbleStore(t *testing.T, c redisstore.Config, f between) *redisstore.Store {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	rdb.AddHook(f)
	return redisstore.New(rdb, c)
}

func TestAnOperationTakesNoLongerThanTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bubble(t, func(cmd redis.Cmder, _ func() error) error {
			time.Sleep(700 * time.Millisecond)
			return grant(cmd)
		})
		var calls sync.WaitGroup
		for i := range 5 {
			calls.Go(func() {
				began := time.Now()
				_, err := b.Acquire(context.Background(), outbound.Cost{1})
				took := time.Since(began)
				// The first call goes alone, and the others gather while it is on its
				// way.
				if i == 0 {
					require.NoError(t, err)
					require.Equal(t, 700*time.Millisecond, took)
					return
				}
				require.ErrorIs(t, err, outbound.ErrAway)
				require.Equal(t, time.Second, took)
			})
			synctest.Wait()
		}
		calls.Wait()
		time.Sleep(time.Minute) // until late replies and the pipeline's goroutine have ended
	})
}

func TestAnyTimeoutIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	for _, timeout := range []time.Duration{math.MaxInt64, math.MaxInt64 / 10, time.Hour} {
		b := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{Timeout: timeout}), "any", outbound.PerSecond(10)))
		_, err := b.State(t.Context())
		require.NoError(t, err, "%v", timeout)
	}
	for _, timeout := range []time.Duration{1, 10, time.Microsecond} { // too short for any trip
		b := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{Timeout: timeout}), "any", outbound.PerSecond(10)))
		_, err := b.State(t.Context())
		require.ErrorIs(t, err, outbound.ErrAway, "%v", timeout)
	}
}

func TestAServerThatIsBackIsFoundThoughTheClientHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		b := bubble(t, func(cmd redis.Cmder, _ func() error) error {
			if time.Since(began) < 900*time.Millisecond {
				time.Sleep(time.Hour)
			}
			return grant(cmd)
		})
		_, err := b.State(context.Background())
		require.ErrorIs(t, err, outbound.ErrAway)
		for err != nil && time.Since(began) < time.Hour {
			time.Sleep(10 * time.Millisecond)
			_, err = b.State(context.Background())
		}
		require.NoError(t, err)
		require.Less(t, time.Since(began), 2500*time.Millisecond)
		time.Sleep(2 * time.Hour)
	})
}

func TestCallsOfManyCostsAreRefusedByOneTrip(t *testing.T) {
	t.Parallel()
	const calls = 50
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	var trips atomic.Int64
	gate := make(chan struct{})
	close(gate)
	var mu sync.Mutex
	rdb.AddHook(between(func(_ redis.Cmder, next func() error) error {
		mu.Lock()
		open := gate
		mu.Unlock()
		<-open
		trips.Add(1)
		return next()
	}))
	b := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{Timeout: time.Minute}), "key", outbound.Limit{Capacity: 1000, LeakRate: 0.001}))
	_, err := b.Acquire(t.Context(), outbound.Cost{980})
	require.NoError(t, err)
	mu.Lock()
	gate = make(chan struct{})
	mu.Unlock()
	trips.Store(0)
	var admitted, entered atomic.Int64
	var all sync.WaitGroup
	for i := range calls {
		// Calls come one after the other, with falling costs; those of 5 and less
		// have room.
		all.Go(func() {
			entered.Add(1)
			p, err := b.Acquire(context.Background(), outbound.Cost{float64(2*calls - 2*i)})
			if err == nil {
				admitted.Add(1)
				p.Done()
				return
			}
			require.ErrorIs(t, err, outbound.ErrThrottled)
		})
		for entered.Load() <= int64(i) {
			time.Sleep(time.Millisecond)
		}
	}
	close(gate)
	all.Wait()
	t.Logf("%d trips, %d admitted", trips.Load(), admitted.Load())
	require.LessOrEqual(t, trips.Load(), int64(12))
	require.GreaterOrEqual(t, admitted.Load(), int64(1))
}

func TestAClusterThatNeverAnswersKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	})
	t.Cleanup(func() { _ = silent.Close(); conns.Wait() })
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{silent.Addr().String()}, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = rdb.Close() })
	s := redisstore.New(rdb, redisstore.Config{Timeout: 100 * time.Millisecond})
	began := time.Now()
	for i := range 20 {
		b := outbound.Must(outbound.NewSharedBucket(s, string(rune('a'+i)), outbound.PerSecond(10)))
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		require.ErrorIs(t, err, outbound.ErrAway)
	}
	// The client itself hangs for a minute in each.
	require.Less(t, time.Since(began), 30*time.Second)
}
