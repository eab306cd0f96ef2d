package queue

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A waiting call takes the smallest stack that a goroutine can have: all that it needs before it
// waits fits into 2 KiB. 100,000 of them would take twice the memory otherwise. The runtime gives
// new goroutines larger stacks if others have needed them, so the test has a process of its own
// without that.
func TestQueue_WaitingCallHasTheSmallestStack(t *testing.T) {
	const fixed = "adaptivestackstart=0"
	if raced {
		t.Skip("frames are larger under the race detector")
	}
	if !strings.Contains(os.Getenv("GODEBUG"), fixed) {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), "GODEBUG="+fixed)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	const calls = 1000
	q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.01}), Config{MaxWait: 1000 * time.Hour})
	if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	var all sync.WaitGroup
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range calls {
		all.Go(func() { _, _ = q.Acquire(ctx, outbound.Cost{1}) })
	}
	for q.Len() < calls {
		runtime.Gosched()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := float64(after.StackInuse-before.StackInuse) / calls; each > 2700 {
		t.Errorf("%.0f bytes of stack each", each)
	}
	cancel()
	all.Wait()
}
