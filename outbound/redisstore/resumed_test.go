package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
)

func TestAKeyThatBeginsAnewIsNoResume(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, l *loser) {
		p, err := l.worker(l.Key(), tenth).Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		p.Refused(time.Minute)
	}
	for kind, start := range map[string]func(testing.TB) *server{"miniredis": newMini, "redis": newClocked} {
		for name, c := range map[string]struct {
			resumed int
			do      func(t *testing.T, l *loser)
		}{
			"it has expired": {0, func(t *testing.T, l *loser) { l.forward(time.Hour) }},
			"it was lost":    {0, func(t *testing.T, l *loser) { l.lose(t) }},
			"it was lost, and many look": {0, func(t *testing.T, l *loser) {
				l.lose(t)
				for range 100 { // each round finds a new life, some right after each other
					_, err := l.State(t.Context())
					require.NoError(t, err)
				}
			}},
			"it was lost, and refused": {0, func(t *testing.T, l *loser) { l.lose(t); refused(t, l) }},
			"it was resumed": {1, func(t *testing.T, l *loser) {
				l.forward(time.Millisecond) // no two lives may begin at the same time
				require.NoError(t, l.worker(l.Key(), tenth).Resume(t.Context()))
			}},
			"it was resumed after a refusal": {1, func(t *testing.T, l *loser) {
				l.forward(time.Millisecond)
				refused(t, l)
				require.NoError(t, l.worker(l.Key(), tenth).Resume(t.Context()))
			}},
		} {
			t.Run(kind+": "+name, func(t *testing.T) {
				t.Parallel()
				l := (&loser{server: start(t)}).worker(fmt.Sprint("resumed:", rand.Uint64()), tenth)
				changes := make(chan outbound.EventKind, 200)
				defer l.Observe(func(c outbound.Event) { changes <- c.Kind })()
				l.acquire(t)
				c.do(t, l)
				_, err := l.State(t.Context())
				require.NoError(t, err)
				resumed := 0
				require.NoError(t, l.SetLimits(t.Context(), outbound.Limit{Capacity: 7, LeakRate: 1}))
				for kind := range changes { // the last change is that of the limits
					if kind == outbound.EventResumed {
						resumed++
					} else if kind == outbound.EventLimits {
						break
					}
				}
				require.Equal(t, c.resumed, resumed)
			})
		}
	}
}
