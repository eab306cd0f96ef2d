//go:build linux

package chaos

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func TestMain(m *testing.M) {
	rollouttest.BareProcess(openBare)
	if text, is := os.LookupEnv(ordersVariable); is {
		obey(text)
		return
	}
	redis.SetLogger(silence{})
	code := m.Run()
	if left := lingering(); left != "" {
		fmt.Printf("FAIL: after all tests there is still at work\n\n%s\n", left)
		code = max(code, 1)
	}
	os.Exit(code)
}

// silence drops the log of clients whose servers the tests kill on purpose.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// lingering names the goroutines of the library and the worker processes that do
// not end, if there are any.
func lingering() string {
	var left string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		left = ""
		stacks := make([]byte, 4<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for stack := range strings.SplitSeq(string(stacks), "\n\n") {
			for _, part := range []string{"/dripfeed/outbound.", "/dripfeed/queue.", "/outbound/redisstore.", "/outbound/internal/engine."} {
				if strings.Contains(stack, part) {
					left += stack + "\n\n"
					break
				}
			}
		}
		if n := processes.Load(); n > 0 {
			left += fmt.Sprintf("%d worker processes\n", n)
		}
		if left == "" {
			return ""
		}
	}
	return left
}

// dice draw the random numbers of one test.
type dice struct{ *rand.Rand }

// newDice returns dice with the seed of DRIPFEED_SEED, or with a new one, and
// prints the seed.
func newDice(t *testing.T) dice {
	t.Helper()
	seed := rand.Uint64N(1e6)
	if text := os.Getenv("DRIPFEED_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "DRIPFEED_SEED")
	}
	t.Logf("to draw the same random numbers again: DRIPFEED_SEED=%d go test -run '^%s$' ./outbound/redisstore/internal/chaos", seed, t.Name())
	h := fnv.New64a() // the test's name, so that its numbers do not depend on which tests run
	_, _ = h.Write([]byte(t.Name()))
	return dice{rand.New(rand.NewPCG(seed, h.Sum64()))}
}

// between draws a time.
func (d dice) between(from, to time.Duration) time.Duration {
	return from + time.Duration(d.Int64N(int64(to-from)))
}

// tag draws a word.
func (d dice) tag() string { return strconv.FormatUint(d.Uint64(), 36) }

func openBare(addr string) store.Store {
	return redisstore.New(redis.NewClient(&redis.Options{Addr: addr}), redisstore.Config{})
}

// Without a queue a Window holds, too: processes 0.2 to 100 ms away are stopped and killed, and
// replies are lost.
func TestBare_WindowHolds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rollouttest.Bare(t, func(t *testing.T, trip time.Duration) string {
		line := redistest.NewProxy(t, server.Addr())
		line.Set(redistest.Faults{Delay: trip / 2, DelayRequests: trip / 2, DropReplies: 0.005})
		return line.Addr()
	})
}
