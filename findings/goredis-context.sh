#!/usr/bin/env bash
# Guess: a call of go-redis with a context that ends after 200 ms, by deadline or because the caller is gone, returns then,
#   also if Redis accepts connections and does not reply, at least with ContextTimeoutEnabled: true.
# Seen: by default it returns after ReadTimeout, 5 s, either way. ContextTimeoutEnabled makes the deadline count. A canceled
# context still waits for 5 s. So does Allow of redis_rate above it.
# It means: a handler whose client has gone keeps its goroutine and connection in the limiter for 5 s. The context needs a
# deadline, and the client the option.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/redis/go-redis/v9@v9.23.0 github.com/go-redis/redis_rate/v10@v10.0.1 2>/dev/null
cat >finding_test.go <<'END'
package finding

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

func Test(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			go io.Copy(io.Discard, conn)
		}
	}()
	for _, c := range []struct {
		enabled, canceled bool
		least, most       time.Duration
	}{
		{false, false, 4 * time.Second, 8 * time.Second},
		{false, true, 4 * time.Second, 8 * time.Second},
		{true, false, 0, 2 * time.Second},
		{true, true, 4 * time.Second, 8 * time.Second},
	} {
		client := redis.NewClient(&redis.Options{Addr: silent.Addr().String(), ContextTimeoutEnabled: c.enabled})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(200*time.Millisecond, cancel)
		if !c.canceled {
			ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
		}
		begin := time.Now()
		_, err := redis_rate.NewLimiter(client).Allow(ctx, "api", redis_rate.PerMinute(10))
		took := time.Since(begin)
		t.Logf("go-redis v9.23.0, ContextTimeoutEnabled %v, canceled %v: after %v: %v", c.enabled, c.canceled, took.Round(100*time.Millisecond), err)
		if took < c.least || took > c.most {
			t.Errorf("want %v to %v", c.least, c.most)
		}
		cancel()
		client.Close()
	}
}
END
timeout 60 go mod tidy 2>/dev/null
timeout 150 go test -v -count=1 . | grep -v '^=== '
