package redisstore

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var (
	scripts = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`)
	spent   = regexp.MustCompile(`used_cpu_(?:user|sys)_main_thread:([0-9.]+)`)
)

// serverTime returns how many scripts a server has run, and the time of its processor in µs.
func serverTime(b testing.TB, rdb redis.Cmdable) (calls, usec float64) {
	stats, err := rdb.Info(context.Background(), "commandstats", "cpu").Result()
	require.NoError(b, err)
	if m := scripts.FindStringSubmatch(stats); m != nil {
		calls, _ = strconv.ParseFloat(m[1], 64)
	}
	for _, m := range spent.FindAllStringSubmatch(stats, -1) {
		sec, _ := strconv.ParseFloat(m[1], 64)
		usec += sec * 1e6
	}
	return calls, usec
}

// BenchmarkUpdate measures one call of an Update, from one caller and from 64 of one key: its time,
// the server's time for it, and how many trips it took.
func BenchmarkUpdate(b *testing.B) {
	leaky := store.Limit{Name: "a", Capacity: 1e11, Rate: 1e9}
	three := []store.Limit{leaky, {Name: "b", Unit: 1, Capacity: 1e11, Rate: 1e9}, {Name: "c", Unit: 2, Capacity: 1e11, Rate: 1e9}}
	window := store.Limit{Name: "a", Kind: store.Window, Capacity: 5000, Rate: 5000. / 6.4, Window: 6400 * time.Millisecond}
	for _, c := range []struct {
		name   string
		limits []store.Limit
		fill   int
	}{{"leaky", []store.Limit{leaky}, 0}, {"three", three, 0}, {"full window", []store.Limit{window}, 5000}} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprint(c.name, "/", callers), func(b *testing.B) {
				server := redistest.Start(b)
				rdb := server.Client(b)
				s := open(b, server.Addr(), Config{Timeout: time.Minute})
				ctx := context.Background()
				for range c.fill / 79 {
					time.Sleep(100 * time.Millisecond)
					op := &store.Op{Limits: c.limits, Action: store.Book, Costs: []store.Units{{80, 80, 80}}}
					_, err := s.Update(ctx, "k", op)
					require.NoError(b, err)
				}
				calls, usec := serverTime(b, rdb)
				var next atomic.Int64
				var all sync.WaitGroup
				b.ResetTimer()
				for range callers {
					all.Go(func() {
						op := &store.Op{Limits: c.limits, Action: store.Book, Costs: []store.Units{{1, 1, 1}}}
						for next.Add(1) <= int64(b.N) {
							if c.fill > 0 {
								s.engine.Forget("k")
							}
							if _, err := s.Update(ctx, "k", op); err != nil {
								b.Error(err)
							}
						}
					})
				}
				all.Wait()
				b.StopTimer()
				after, used := serverTime(b, rdb)
				b.ReportMetric((used-usec)/(after-calls), "server-µs/trip")
				b.ReportMetric((after-calls)/float64(b.N), "trips/op")
			})
		}
	}
}
