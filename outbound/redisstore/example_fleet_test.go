package redisstore_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// lines is a log that the test reads while others write it.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

func TestExampleFleet_LogsThatRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(api.Close)
	var log lines
	client, err := newWorker(rdb, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	call := func() {
		resp, err := client.Get(api.URL)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	call()
	mini.Close()
	call() // goes by the worker's own share
	for _, line := range []string{"msg=redis event=down", `msg="the limit is shared" "by redis"=false`} {
		require.Eventually(t, func() bool { return log.has(line) }, time.Minute, time.Millisecond, line)
	}
}
