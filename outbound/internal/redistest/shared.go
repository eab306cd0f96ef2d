package redistest

import (
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// shared starts the one server for all tests of this process. It ends with the
// process.
var shared = sync.OnceValues(func() (*Server, error) {
	b, err := find()
	if err != nil {
		return nil, err
	}
	s, err := run(config{program: b})
	if err != nil {
		return nil, err
	}
	s.shared = true
	return s, nil
})

// Shared returns the one server that serves all tests of a binary. Each test
// uses random keys of its own, and does nothing that other tests would notice:
// methods that break or configure the server fail it. Without a redis-server
// Shared gives a miniredis of the test's own.
func Shared(t testing.TB) *Server {
	t.Helper()
	if _, err := find(); err != nil {
		return Start(t)
	}
	s, err := shared()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	announce(t, s.config.program.String())
	return s
}

// Each runs a test against a miniredis, and against the real server of
// [Shared], as subtests "miniredis" and "redis". The second is skipped where
// there is no redis-server.
func Each(t *testing.T, test func(t *testing.T, client redis.UniversalClient)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		test(t, startMini(t).Client(t))
	})
	t.Run("redis", func(t *testing.T) {
		if _, err := find(); err != nil {
			lack(t, err.Error())
		}
		test(t, Shared(t).Client(t))
	})
}
