//go:build linux

package chaos

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
)

// A server that may evict keys evicts buckets, because they expire. Each time the
// bucket is empty afterwards: do not keep buckets in such a server.
func TestABucketThatIsEvictedCostsOneCapacity(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"volatile-ttl", "allkeys-random"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--maxmemory", "3mb", "--maxmemory-policy", policy, "--maxmemory-samples", "64")
			f := newFleet(t, outbound.Limit{Capacity: 10, LeakRate: 100})
			f.addSome(3, func() redis.UniversalClient { return server.Client(t) }, role{})
			f.goesOn(20)
			client, bulk := server.Client(t), strings.Repeat("x", 10_000)
			for n := 2; n <= 4; n++ {
				eventually(t, "the bucket is evicted", func() bool {
					for range 50 {
						require.NoError(t, client.Set(t.Context(), rand.Text(), bulk, time.Hour).Err())
					}
					return len(f.lives()) >= n
				})
				f.run(50 * time.Millisecond)
			}
			f.goesOn(20)
			f.stop()
			evictions := float64(len(f.lives()) - 1)
			f.checkBoth(0, evictions*emptied(f.limit))
		})
	}
}
