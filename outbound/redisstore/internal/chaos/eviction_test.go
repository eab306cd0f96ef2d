//go:build linux

package chaos

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
)

// A server that may evict keys evicts buckets, because they expire. Each time the
// bucket is empty afterwards: do not keep buckets in such a server.
func TestEviction_CostsOneCapacity(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"volatile-ttl", "allkeys-random"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--maxmemory", "3mb", "--maxmemory-policy", policy, "--maxmemory-samples", "64")
			fs := newFleets(t, leaky, window)
			fs.addSome(3, func() redis.UniversalClient { return server.Client(t) }, role{})
			fs.goesOn(20)
			client, bulk := server.Client(t), strings.Repeat("x", 10_000)
			for n := 2; n <= 4; n++ {
				eventually(t, "the buckets are evicted", func() bool {
					for range 50 {
						require.NoError(t, client.Set(t.Context(), rand.Text(), bulk, time.Hour).Err())
					}
					return len(fs[0].lives()) >= n && len(fs[1].lives()) >= n
				})
				fs.run(50 * time.Millisecond)
			}
			fs.goesOn(20)
			for _, f := range fs {
				f.stop()
				f.checkBoth(nothing, f.losses())
			}
		})
	}
}
