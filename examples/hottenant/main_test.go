package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"testing"
	"testing/synctest"
	"time"
)

func TestScheduler_HotTenantLeavesWorkersFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, w := range ways {
			longest, err := serve(t.Context(), w.limiter)
			if err != nil {
				t.Fatal(err)
			}
			for _, tenant := range tenants {
				waits := tenant.name == "acme" || w.name == "queue"
				if got := longest[tenant.name]; got > time.Second != waits {
					t.Errorf("%s: %s waits for %v", w.name, tenant.name, got)
				}
			}
		}
		time.Sleep(time.Minute)
	})
}

func TestProgram_ShowsTheLongestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`queue  acme, 40 jobs  █{20,} 2\.\d s\n         bolt,  4 jobs  █{12,} [12]\.\d s`,
			`jobs   acme, 40 jobs  █{20,} 2\.\d s\n         bolt,  4 jobs  █{1,7} 0\.\d s`,
		} {
			if !regexp.MustCompile(want).Match(out.Bytes()) {
				t.Errorf("%q is missing:\n%s", want, &out)
			}
		}
		time.Sleep(time.Minute)
	})
}

func TestInterrupt_EndsTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := run(ctx, io.Discard); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		time.Sleep(time.Minute)
	})
}
