package redistest

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The clock of one server moves both ways, and stays through a restart. Other servers have the
// machine's.
func TestClock_MovesBothWays(t *testing.T) {
	need(t)
	s := StartWithClock(t)
	client := s.Client(t)
	ahead := func() time.Duration {
		return time.Until(client.Time(t.Context()).Val())
	}
	near := func(want, have time.Duration) {
		t.Helper()
		require.InDelta(t, want.Seconds(), have.Seconds(), 60)
	}
	near(0, ahead())
	require.NoError(t, client.Set(t.Context(), "minute", "v", time.Minute).Err())

	s.SetClock(t, time.Hour)
	near(time.Hour, ahead())
	require.WithinDuration(t, time.Now(), Start(t).Client(t).Time(t.Context()).Val(), time.Minute)
	require.ErrorIs(t, client.Get(t.Context(), "minute").Err(), redis.Nil)
	require.NoError(t, client.Set(t.Context(), "minute", "v", time.Minute).Err())

	s.SetClock(t, -time.Hour)
	near(-time.Hour, ahead())
	near(2*time.Hour+time.Minute, client.PTTL(t.Context(), "minute").Val())

	s.Restart(t)
	near(-time.Hour, ahead())
	script := client.Eval(t.Context(), "return redis.call('TIME')[1]", nil)
	seconds, err := strconv.ParseInt(script.Val().(string), 10, 64)
	require.NoError(t, err)
	near(-time.Hour, time.Until(time.Unix(seconds, 0)))
}
