package redisstore_test

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
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)
var scriptTime2 = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`)
func BenchmarkOldUpdate(b *testing.B) {
	leaky := leak.Limit{Name: "a", Capacity: 1e11, Rate: 1e9}
	three := []leak.Limit{leaky, {Name: "b", Unit: 1, Capacity: 1e11, Rate: 1e9}, {Name: "c", Unit: 2, Capacity: 1e11, Rate: 1e9}}
	window := leak.Limit{Name: "a", Kind: leak.Moving, Capacity: 5000, Rate: 5000. / 3600, Window: time.Hour}
	for _, c := range []struct {
		name   string
		limits []leak.Limit
		fill   int
	}{{"leaky", []leak.Limit{leaky}, 0}, {"three", three, 0}, {"full window", []leak.Limit{window}, 5000}} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprint(c.name, "/", callers), func(b *testing.B) {
				server := redistest.Start(b)
				rdb := server.Client(b)
				r2 := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
				s := redisstore.New(r2, redisstore.Config{Timeout: time.Minute})
				ctx := context.Background()
				for range c.fill / 50 {
					op := &leak.Op{Limits: c.limits, Action: leak.Book, Costs: []leak.Units{{50, 50, 50}}}
					_, err := s.Update(ctx, "k", op)
					require.NoError(b, err)
				}
				st := func() (calls, usec float64) {
					stats, _ := rdb.Info(ctx, "commandstats").Result()
					if m := scriptTime2.FindStringSubmatch(stats); m != nil {
						calls, _ = strconv.ParseFloat(m[1], 64)
						usec, _ = strconv.ParseFloat(m[2], 64)
					}
					return
				}
				calls, usec := st()
				var next atomic.Int64
				var all sync.WaitGroup
				b.ResetTimer()
				for range callers {
					all.Go(func() {
						op := &leak.Op{Limits: c.limits, Action: leak.Book, Costs: []leak.Units{{1, 1, 1}}}
						for next.Add(1) <= int64(b.N) {
							if c.fill > 0 {
								s.Forget("k")
							}
							if _, err := s.Update(ctx, "k", op); err != nil {
								b.Error(err)
							}
						}
					})
				}
				all.Wait()
				b.StopTimer()
				after, used := st()
				b.ReportMetric((used-usec)/(after-calls), "server-µs/trip")
				b.ReportMetric((after-calls)/float64(b.N), "trips/op")
			})
		}
	}
}
