package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

func TestAllJobsAreDoneAtThePaceOfTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		// 39 intervals of 40.4 ms are 1.58 s; the look that follows comes at 1.75 s.
		for _, want := range []string{
			`order 7: the address does not exist`,
			`37 shipped and 3 failed in 1\.6 s\.`,
			`all sent in 1\.[78]\d* s, by 1\d\d attempts`,
			`In no second did more than 25 calls begin\.\nThe API allows 25\.`,
		} {
			if !regexp.MustCompile(want).Match(out.Bytes()) {
				t.Errorf("%q is missing", want)
			}
		}
		if t.Failed() {
			t.Logf("\n%s", &out)
		}
	})
}

// attempts lets a job system send all reports through l.
func attempts(t *testing.T, l outbound.Limiter) (n int, took time.Duration) {
	t.Helper()
	var api api
	start := time.Now()
	system := newJobSystem(poll, reports, outbound.Wrap(l, outbound.Cost{1}, api.send))
	if err := system.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return system.attempts, time.Since(start)
}

func TestQueueSavesMostAttemptsAndMostOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := outbound.Must(outbound.NewBucket("shop", outbound.PerSecond(perSecond)))
		bare, slow := attempts(t, bucket)
		waiting, fast := attempts(t, queue.New(bucket, queue.Config{MaxWait: poll}))
		// One job goes at each look of the system, and all others are refused again.
		if bare != reports*(reports+1)/2 || slow < reports*poll {
			t.Errorf("a bare bucket took %d attempts and %v, want %d and %v", bare, slow, reports*(reports+1)/2, reports*poll)
		}
		if waiting > bare/4 || fast > slow/4 {
			t.Errorf("a queue took %d attempts and %v, a bare bucket %d and %v", waiting, fast, bare, slow)
		}
	})
}

func TestFailureOfAReportEndsTheSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		system := newJobSystem(poll, 3, func(_ context.Context, id int) error {
			if id == 0 {
				return broken
			}
			return &outbound.ThrottledError{RetryAfter: time.Hour}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := system.run(ctx); !errors.Is(err, broken) {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestInterruptEndsBothKinds(t *testing.T) {
	for _, after := range []time.Duration{time.Second, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			start := time.Now()
			var out bytes.Buffer
			if err := run(ctx, &out); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after %v the error is %v", after, err)
			}
			if ended := bytes.Contains(out.Bytes(), []byte("shipped")); ended != (after > time.Second) {
				t.Errorf("after %v it printed\n%s", after, &out)
			}
			if took := time.Since(start); took != after {
				t.Errorf("it ended after %v instead of %v", took, after)
			}
		})
	}
}
