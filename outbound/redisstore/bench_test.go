package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// minimal only books a place: the least that a round trip with a script costs.
var minimal = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1e6 + t[2]
local tat = tonumber(redis.call('GET', KEYS[1]) or 0)
if tat < now then tat = now end
redis.call('SET', KEYS[1], string.format('%.0f', tat + tonumber(ARGV[1])), 'PX', 60000)
return string.format('%.0f', tat)`)

// spread shares b.N calls among goroutines.
func spread(b *testing.B, goroutines int, call func(i int)) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range goroutines {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				call(int(i))
			}
		}()
	}
	wg.Wait()
}

func BenchmarkDecision(b *testing.B) {
	ctx := context.Background()
	rdb := redistest.Shared(b).Client(b)
	for _, c := range []struct{ goroutines, keys int }{{1, 1}, {64, 1}, {256, 1}, {256, 1000}} {
		name := fmt.Sprintf("%d on %d", c.goroutines, c.keys)
		b.Run("ping/"+name, func(b *testing.B) {
			spread(b, c.goroutines, func(int) { rdb.Ping(ctx) })
		})
		b.Run("script/"+name, func(b *testing.B) {
			spread(b, c.goroutines, func(i int) {
				if err := minimal.Run(ctx, rdb, []string{fmt.Sprint("minimal:", i%c.keys)}, 1).Err(); err != nil {
					b.Error(err)
				}
			})
		})
		b.Run("dripfeed/"+name, func(b *testing.B) {
			s := redisstore.New(rdb, redisstore.Config{})
			var buckets []*outbound.Bucket
			for i := range c.keys {
				buckets = append(buckets, outbound.Must(outbound.NewSharedBucket(s, fmt.Sprint(b.Name(), i), outbound.Limit{Capacity: 1e11, LeakRate: 1e9})))
			}
			spread(b, c.goroutines, func(i int) {
				p, err := buckets[i%c.keys].Acquire(ctx, outbound.Cost{1})
				if err != nil {
					b.Error(err)
				}
				p.Done()
			})
		})
	}
}
