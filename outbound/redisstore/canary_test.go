package redisstore_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// monitor returns a function that returns all commands that the server has received so
// far.
func monitor(t *testing.T, s *redistest.Server) func() string {
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	var mu sync.Mutex
	var heard strings.Builder
	ready := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		lines := bufio.NewScanner(conn)
		lines.Buffer(nil, 16<<20)
		for n := 0; lines.Scan(); n++ {
			if n == 0 {
				close(ready)
			}
			mu.Lock()
			heard.WriteString(lines.Text() + "\n")
			mu.Unlock()
		}
	})
	t.Cleanup(func() { _ = conn.Close(); reader.Wait() })
	_, err = fmt.Fprint(conn, "MONITOR\r\n")
	require.NoError(t, err)
	<-ready
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return heard.String()
	}
}

// exercise calls most methods of a bucket.
func exercise(t *testing.T, b *outbound.Bucket) {
	p, err := b.Acquire(t.Context(), outbound.Cost{1})
	require.NoError(t, err)
	p.Settle(outbound.Cost{0.5})
	p.Refused(time.Millisecond)
	require.NoError(t, b.SetLimits(t.Context(), outbound.Limit{Capacity: 20, LeakRate: 1}))
	_, err = b.Fillup(t.Context(), outbound.Cost{1})
	require.NoError(t, err)
	require.NoError(t, b.Resume(t.Context()))
}

func TestATokenInAKeyShowsNowhereInTheServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--slowlog-log-slower-than", "0", "--slowlog-max-len", "1000")
	const token = "sk-live-4242canary"
	for _, plain := range []bool{false, true} {
		heard := monitor(t, s)
		store := redisstore.New(s.Client(t), redisstore.Config{PlainKeys: plain, Timeout: time.Minute})
		exercise(t, outbound.Must(outbound.NewSharedBucket(store, "tenant:"+token, outbound.Limit{Capacity: 10, LeakRate: 1})))
		require.Eventually(t, func() bool { return strings.Count(heard(), "dripfeed:1:") >= 6 }, time.Minute, time.Millisecond)
		slow := fmt.Sprintf("%s", s.Do(t, "SLOWLOG", "GET", "-1"))
		keys := fmt.Sprint(s.Do(t, "KEYS", "*"))
		require.Contains(t, slow, "dripfeed:1:")
		for _, shown := range []string{heard(), slow, keys} {
			require.Equal(t, plain, strings.Contains(shown, token), "plain keys: %v", plain)
		}
	}
}

func TestPlainKeysAreEscapedAndKeptApart(t *testing.T) {
	t.Parallel()
	store := redisstore.New(nil, redisstore.Config{PlainKeys: true, Prefix: "app"})
	hashed := redisstore.New(nil, redisstore.Config{Prefix: "app"})
	for bucket, name := range map[string]string{
		"api.example.com/v1":  "app:1:api.example.com/v1",
		"a b":                 "app:1:a%20b",
		"{a}b":                "app:1:%7Ba%7Db",
		"a%20b":               "app:1:a%2520b",
		"\r\nFLUSHALL\r\n":    "app:1:%0D%0AFLUSHALL%0D%0A",
		"é\x00*":              "app:1:%C3%A9%00%2A",
		"\x00beside\"line\"b": "app:1:%00beside%22line%22b", // of what is beside the bucket b
		"#x":                  "app:1:%23x",
		"":                    "app:1:",
		"b:1":                 "app:1:b:1",
		"1:b":                 "app:1:1%3Ab",
		"b:1:1:":              "app:1:b:1%3A1%3A",
	} {
		require.Equal(t, name, store.Key(bucket))
		require.Regexp(t, `^app:1:#[\w-]{22}$`, hashed.Key(bucket))
	}
	// No prefix ends where another's bucket begins.
	names := map[string]bool{}
	for _, prefix := range []string{"app", "app:1", "app:1:1", "app:", "app:1:"} {
		other := redisstore.New(nil, redisstore.Config{PlainKeys: true, Prefix: prefix})
		for _, bucket := range []string{"", "b", ":b", "1:b", ":1:b", "1:1:b", "1::b", "1:1::1:b", "::b"} {
			require.False(t, names[other.Key(bucket)], "%q %q", prefix, bucket)
			names[other.Key(bucket)] = true
		}
	}
	long := strings.Repeat("x", 513)
	require.Equal(t, hashed.Key(long), store.Key(long))
	seen := map[string]string{}
	for range 20_000 { // few and odd letters, so that prefixes that could meet do meet
		b := make([]byte, rand.IntN(6))
		for i := range b {
			b[i] = "a%21{}:#\x00"[rand.IntN(9)]
		}
		for _, s := range []*redisstore.Store{store, hashed} {
			name := s.Key(string(b))
			if was, ok := seen[name]; ok && was != string(b) {
				t.Fatalf("%q and %q are both %s", was, b, name)
			}
			seen[name] = string(b)
			require.False(t, strings.ContainsAny(name, "{} \x00\r\n*"), name)
		}
	}
}
