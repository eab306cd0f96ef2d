//go:build linux

package chaos

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
)

// The test tells sentinels to promote a replica while the master is well. Until the old master
// is demoted, both masters admit. If a master needs one replica of two to write, only the master
// that the other replica follows admits.
func TestFailover_PlannedCostsWhatBothMastersAdmit(t *testing.T) {
	t.Parallel()
	for _, least := range []string{"0", "1"} {
		t.Run("min-replicas-to-write "+least, func(t *testing.T) {
			d := newDice(t)
			s := redistest.StartSentinel(t)
			for _, server := range s.Servers {
				server.Do(t, "CONFIG", "SET", "min-replicas-to-write", least)
			}
			f := newFleet(t, leaky, window)
			for _, server := range s.Servers { // each server that is a master is used: both, while both are masters
				f.addSome(2, func() redis.UniversalClient { return server.Client(t) }, role{})
			}
			f.goesOn(20)
			f.run(d.between(0, 500*time.Millisecond))

			var servers []*redis.Client
			for _, server := range s.Servers {
				servers = append(servers, server.Client(t)) // the demoted server ends its connections
			}
			begin := time.Now()
			failOver(t, s)
			eventually(t, "only one is a master", func() bool {
				n := 0
				for _, c := range servers {
					role, err := c.Do(t.Context(), "ROLE").Slice()
					if err != nil {
						return false
					}
					if role[0] == "master" {
						n++
					}
				}
				return n == 1
			})
			overlap := time.Since(begin)
			t.Logf("the old master was demoted %v after the failover began", overlap.Round(time.Millisecond))
			f.goesOn(50)
			// On a busy machine the sentinels may find a master down, and promote again.
			epoch, err := strconv.ParseFloat(fmt.Sprint(s.Sentinels[0].Do(t, "SENTINEL", "MASTER", "master").(map[any]any)["config-epoch"]), 64)
			require.NoError(t, err)
			f.check(func(p promise) float64 { // each master keeps a window for itself
				c := max(1, epoch) * forgotten(p)
				if least == "0" {
					c += leaked(overlap)(p)
				}
				return c
			})
		})
	}
}

// failOver makes the sentinels promote a replica, and waits until they have. On a busy machine
// they may give up, or promote the first master again: then failOver asks them again after their
// own timeout.
func failOver(t *testing.T, s *redistest.Sentinel) {
	t.Helper()
	const patience = 15 * time.Second // longer than the sentinels' own timeout
	sentinel := s.Sentinels[0].Client(t)
	var replicas []*redis.Client
	for _, server := range s.Servers[1:] {
		replicas = append(replicas, server.Client(t))
	}
	var asked time.Time
	eventually(t, "a replica is promoted", func() bool {
		if time.Since(asked) > patience {
			asked = time.Now()
			_ = sentinel.Do(t.Context(), "SENTINEL", "FAILOVER", "master").Err() // a failover may be under way
		}
		for _, replica := range replicas {
			role, err := replica.Do(t.Context(), "ROLE").Slice()
			if err == nil && role[0] == "master" {
				return true
			}
		}
		return false
	})
}
