#!/usr/bin/env bash
# Guess: Allow of redis_rate charges one call or reports an error: its script is not repeatable, so go-redis does not send
#   it again after a timeout.
# Seen: go-redis sends EVALSHA and INCR again after a timeout. One reply that is later than ReadTimeout charges 2 of 10,
# and Allow reports success. A counter with INCR is at 2 after one call. With MaxRetries -1 it is 1, and an error.
# It means: when Redis is slow for a moment, calls are charged twice, and no error or metric of the limiter shows it.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/redis/go-redis/v9@v9.23.0 github.com/go-redis/redis_rate/v10@v10.0.1 \
	github.com/alicebob/miniredis/v2@v2.40.0 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

// late delays one read until its deadline is over.
type late struct {
	net.Conn
	next *atomic.Bool
}

func (l late) Read(b []byte) (int, error) {
	if l.next.Swap(false) {
		time.Sleep(700 * time.Millisecond)
	}
	return l.Conn.Read(b)
}

func Test(t *testing.T) {
	for _, c := range []struct{ retries, left, count int }{{0, 8, 2}, {-1, 9, 1}} { // 0: the default
		server, next := miniredis.RunT(t), new(atomic.Bool)
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: 500 * time.Millisecond, MaxRetries: c.retries,
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return late{conn, next}, err
			}})
		defer client.Close()
		limiter := redis_rate.NewLimiter(client)
		minute := redis_rate.PerMinute(10)
		if _, err := limiter.Allow(t.Context(), "warm", minute); err != nil {
			t.Fatal(err)
		}
		next.Store(true)
		_, allowErr := limiter.Allow(t.Context(), "api", minute)
		result, err := limiter.AllowN(t.Context(), "api", minute, 0)
		if err != nil {
			t.Fatal(err)
		}
		next.Store(true)
		incrErr := client.Incr(t.Context(), "counter").Err()
		count, err := client.Get(t.Context(), "counter").Int()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("go-redis v9.23.0, MaxRetries %d, a late reply: Allow leaves %d of 10 (%v), INCR counts %d (%v)", c.retries, result.Remaining, allowErr, count, incrErr)
		if result.Remaining != c.left || count != c.count || (c.retries == 0) != (allowErr == nil && incrErr == nil) {
			t.Errorf("want %d and %d", c.left, c.count)
		}
	}
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
