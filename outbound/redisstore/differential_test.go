package redisstore_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// stepsOf returns how many of its steps a test of random traces takes. Together
// the tests have a million steps. With DRIPFEED_LONG set they take all, in some
// five minutes.
func stepsOf(all int) int {
	switch {
	case raced || testing.Short():
		return all / 20
	case os.Getenv("DRIPFEED_LONG") != "":
		return all
	}
	return all / 6
}

// perTrace is the largest number of steps in one trace.
const perTrace = 400

var seed = func() uint64 {
	n, err := strconv.ParseUint(os.Getenv("DRIPFEED_SEED"), 10, 64)
	if err != nil { // mostly there is no error
		n = rand.Uint64()
	}
	return n
}()

func TestTheScriptDecidesAsTheArithmeticDoesOnMiniredis(t *testing.T) {
	t.Parallel()
	workers := 2
	if raced {
		workers = 1
	}
	var total, blurred, trusted atomic.Int64
	all := int64(stepsOf(10_000))
	for g := range workers {
		t.Run(fmt.Sprint(g), func(t *testing.T) {
			t.Parallel()
			mini := miniredis.RunT(t)
			// A busy machine may stall for seconds. A request that is sent once more has the same
			// answer, but not after another one.
			rdb := redis.NewClient(&redis.Options{Addr: mini.Addr(), ReadTimeout: time.Minute})
			t.Cleanup(func() { _ = rdb.Close() })
			stores := twoStores(rdb)
			now := time.Unix(1_700_000_000, 0)
			latest := now
			set := func(d time.Duration) {
				now = now.Add(d.Truncate(time.Microsecond))
				mini.SetTime(now)
				if ahead := now.Sub(latest); ahead > 0 {
					latest = now
					mini.FastForward(ahead)
				}
			}
			set(0)
			for n := uint64(0); total.Load() < all; n++ {
				s := seed + 2*n + uint64(g)
				w := newTrace(s, fmt.Sprint("trace:", s), stores, rdb, func() time.Duration { return time.Duration(latest.UnixNano()) })
				for w.steps < perTrace {
					if err := w.step(); err != nil {
						t.Fatalf("seed %d: %v", s, err)
					}
					set(w.pause())
				}
				total.Add(int64(w.steps))
				blurred.Add(int64(w.blurred))
				trusted.Add(int64(w.trusted))
			}
		})
	}
	t.Cleanup(func() {
		t.Logf("%d steps, blurred %d, trusted %d times, seed %d", total.Load(), blurred.Load(), trusted.Load(), seed)
	})
}

func TestTheScriptDecidesAsTheArithmeticDoesOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.StartWithClock(t)
	rdb := server.Client(t, func(o *redis.Options) { o.PoolSize = 20; o.ReadTimeout = time.Minute })
	stores := twoStores(rdb)
	all, side := int64(stepsOf(600_000)), 64
	if raced { // each of the traces takes all its steps
		all, side = all/3, 16
	}
	var total, blurred, trusted, lives, keys atomic.Int64
	// The clock leaps ahead and back, whatever the traces do. ahead is the
	// furthest that it has been ahead.
	var ahead atomic.Int64
	latest := func() time.Duration { return time.Duration(time.Now().UnixNano() + ahead.Load()) }
	var traces sync.WaitGroup
	for range side {
		traces.Go(func() {
			for total.Load() < all && !t.Failed() {
				s := seed + uint64(keys.Add(1))
				w := newTrace(s, fmt.Sprint("trace:", s), stores, rdb, latest)
				for w.steps < perTrace {
					if err := w.step(); err != nil {
						t.Errorf("seed %d, %d limits: %v", s, len(w.limits), err)
						return
					}
				}
				total.Add(int64(w.steps))
				blurred.Add(int64(w.blurred))
				trusted.Add(int64(w.trusted))
				lives.Add(int64(w.lives))
			}
		})
	}
	ended := make(chan struct{})
	go func() { traces.Wait(); close(ended) }()
	r := rand.New(rand.NewPCG(seed, 0))
	var offset time.Duration
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		select {
		case <-ended:
			t.Logf("%d steps on %d keys, of which %d were forgotten and came again, blurred %d, trusted %d times, seed %d", total.Load(), keys.Load(), lives.Load()-keys.Load(), blurred.Load(), trusted.Load(), seed)
			require.Less(t, blurred.Load(), total.Load()/100)
			if !raced && !testing.Short() { // in a few traces this may not happen
				require.Greater(t, trusted.Load(), total.Load()/1000)
			}
			return
		case <-tick.C:
			leap := r.ExpFloat64() * float64([]time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second}[r.IntN(5)])
			switch r.IntN(100) {
			case 0:
				leap *= 50
			case 1, 2:
				leap = -leap / 2
			}
			offset += time.Duration(leap)
			ahead.Store(max(ahead.Load(), int64(offset)))
			server.SetClock(t, offset)
		}
	}
}

func TestMemoryDecidesAsTheArithmeticDoes(t *testing.T) {
	all, total, kinded, blurred, trusted := stepsOf(390_000), 0, 0, 0, 0
	for n := uint64(0); total < all; n++ {
		synctest.Test(t, func(t *testing.T) {
			memory := leak.NewMemory()
			latest := func() time.Duration { return math.MaxInt64 } // Memory forgets by itself, and not too early: see its own tests
			w := newTrace(seed+n, "trace", []leak.Store{memory, memory}, nil, latest)
			for w.steps < perTrace {
				if err := w.step(); err != nil {
					t.Fatalf("seed %d: %v", seed+n, err)
				}
				time.Sleep(w.pause())
			}
			total += w.steps
			if w.kinds {
				kinded += w.steps
			}
			blurred += w.blurred
			trusted += w.trusted
		})
	}
	t.Logf("%d steps, %d of them with windows or calendars, trusted %d times, seed %d", total, kinded, trusted, seed)
	require.Zero(t, blurred, "nothing rounds in this process")
	if !raced && !testing.Short() { // in a few traces this may not happen
		require.Greater(t, trusted, total/1000)
	}
}

// pause draws the time until the next step.
func (t *trace) pause() time.Duration {
	l := &t.limits[t.r.IntN(len(t.limits))]
	d := drainOf(l) * 1e9
	switch t.r.IntN(24) {
	case 0, 1, 2:
		return 0
	case 3:
		return time.Microsecond
	case 4, 5: // when the refused call could go
		if t.got.Wait < 48*time.Hour {
			return t.got.Wait + time.Microsecond - 1
		}
	case 6, 7: // when the booked call goes
		if k := len(t.got.Charges); k > 0 {
			if in, _ := t.got.State.Due(t.got.Charges[k-1].Place); in < 48*time.Hour {
				return in + time.Microsecond - 1
			}
		}
	case 8:
		return max(0, min(t.got.State.Rem, 48*time.Hour)) + time.Microsecond - 1
	case 9:
		return time.Duration(2 * d)
	case 10:
		if t.r.IntN(20) == 0 {
			return 24 * time.Hour
		}
	case 11:
		if t.r.IntN(5) == 0 {
			return -time.Duration(t.r.ExpFloat64() * float64([]time.Duration{time.Microsecond, time.Millisecond, time.Second, time.Hour}[t.r.IntN(4)]))
		}
	}
	return time.Duration(t.r.ExpFloat64() * d * []float64{0.01, 0.1, 0.3}[t.r.IntN(3)])
}

// twoStores returns the stores of two workers.
func twoStores(rdb redis.UniversalClient) []leak.Store {
	return []leak.Store{
		redisstore.New(rdb, redisstore.Config{Timeout: time.Minute}),
		redisstore.New(rdb, redisstore.Config{Timeout: time.Minute}),
	}
}
