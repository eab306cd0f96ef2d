package redisstore_test

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

var scriptTime = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`)

// BenchmarkServer measures a decision in the time of the server, as it counts it itself, beside
// that of a leaky limit at the same time.
func BenchmarkServer(b *testing.B) {
	for _, c := range []struct {
		name  string
		limit outbound.Limit
		fill  time.Duration // between the calls that fill the log
		pause time.Duration // before each decision, by the server's clock
		cost  float64
	}{
		{"window with room", outbound.Window(1e9, time.Minute), time.Second, time.Millisecond, 1},
		{"window, a new entry each", outbound.Window(1e9, time.Minute), time.Second, time.Second, 1},
		{"window that refuses", outbound.Window(70, time.Hour), time.Minute, time.Microsecond, 1},
		{"window that refuses many", outbound.Window(64, time.Hour), time.Minute, time.Microsecond, 32},
		{"day", outbound.Daily(1e9, time.UTC), time.Second, time.Millisecond, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newClocked(b)
			spent := func() (calls, usec float64) {
				stats, err := s.rdb.Info(b.Context(), "commandstats").Result()
				require.NoError(b, err)
				if m := scriptTime.FindStringSubmatch(stats); m != nil {
					calls, _ = strconv.ParseFloat(m[1], 64)
					usec, _ = strconv.ParseFloat(m[2], 64)
				}
				return calls, usec
			}
			var took [2]float64
			for i, limit := range []outbound.Limit{{Capacity: c.limit.Capacity, LeakRate: max(1, c.limit.LeakRate)}, c.limit} {
				if c.limit.Capacity < 1e9 && i == 0 { // one that refuses, too
					limit = outbound.Limit{Capacity: c.limit.Capacity, LeakRate: c.limit.LeakRate}
				}
				store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute})
				key := fmt.Sprint(c.name, i)
				bucket := outbound.Must(outbound.NewSharedBucket(store, key, limit))
				ask := func(cost float64) {
					store.Forget(key)
					if _, err := bucket.Acquire(b.Context(), outbound.Cost{cost}); err != nil && !errors.Is(err, outbound.ErrThrottled) {
						b.Fatal(err)
					}
				}
				for range 70 { // so that the log is full
					ask(1)
					s.forward(c.fill)
				}
				calls, usec := spent()
				for range b.N {
					s.forward(c.pause)
					ask(c.cost)
				}
				after, used := spent()
				took[i] = (used - usec) / (after - calls)
			}
			b.ReportMetric(took[0], "µs/leaky")
			b.ReportMetric(took[1], "µs/decision")
			b.ReportMetric(took[1]/took[0], "of-leaky")
		})
	}
}
