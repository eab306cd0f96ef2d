package queue_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"runtime/trace"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// An execution trace tells of a wait, and not of a call that goes at once.
func TestTrace_HasARegionForAWait(t *testing.T) {
	for _, waits := range []bool{false, true} {
		q := queue.New(outbound.Must(outbound.NewBucket("key", outbound.Limit{Capacity: 2, LeakRate: 1})), queue.Config{})
		var out bytes.Buffer
		if err := trace.Start(&out); err != nil {
			t.Skip("something else is tracing: ", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if waits {
			if err := q.Bucket().Hold(ctx, time.Hour); err != nil {
				t.Error(err)
			}
			go func() {
				for q.Len() == 0 {
					runtime.Gosched()
				}
				cancel()
			}()
		}
		p, err := q.Acquire(ctx, outbound.Cost{1})
		p.Done()
		cancel()
		trace.Stop()
		if told := bytes.Contains(out.Bytes(), []byte("dripfeed: wait in a queue")); told != waits || errors.Is(err, context.Canceled) != waits {
			t.Errorf("waits %v, told %v: %v", waits, told, err)
		}
	}
}
