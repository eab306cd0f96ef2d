package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgram_ShipsAtThePaceOfTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		// 49 intervals of 40.4 ms are 1.98 s.
		for _, want := range []string{"order 7: the address does not exist\n", "47 shipped and 3 failed in 2.0 s.\n"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q is missing:\n%s", want, &out)
			}
		}
	})
}

func TestInterrupt_EndsTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		var out bytes.Buffer
		if err := run(ctx, &out); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(out.String(), "shipped") {
			t.Errorf("%v:\n%s", err, &out)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}
