//go:build linux

package chaos

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
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
