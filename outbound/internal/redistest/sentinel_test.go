package redistest

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestSentinelsReplaceAMasterThatWasKilled(t *testing.T) {
	s := StartSentinel(t)
	client := s.Client(t)
	require.NoError(t, client.Set(t.Context(), "k", "v", 0).Err())
	master := s.Master(t)
	require.Equal(t, s.Servers[0], master)
	require.NoError(t, poll(func() error { return online(master, 2) }))
	master.Kill(t)
	promoted := s.Master(t)
	require.NotEqual(t, master.Addr(), promoted.Addr())
	require.Contains(t, s.Servers, promoted)
	client = s.Client(t, func(o *redis.FailoverOptions) { o.MaxRetries = -1 })
	require.Equal(t, "v", client.Get(t.Context(), "k").Val())
	require.NoError(t, client.Set(t.Context(), "k", "w", 0).Err())
	require.Equal(t, "w", promoted.Do(t, "GET", "k"))
}
