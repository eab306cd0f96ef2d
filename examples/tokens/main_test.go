package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func TestEstimate_UsesMoreOfTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > runFor {
			t.Errorf("it took %v, longer than %v", took, runFor)
		}
		share := func(name string) int {
			m := regexp.MustCompile(name + `.* (\d+) %`).FindSubmatch(out.Bytes())
			if m == nil {
				t.Fatalf("no share of %q in\n%s", name, &out)
			}
			n, err := strconv.Atoi(string(m[1]))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		for _, c := range []struct {
			name        string
			least, most int
		}{
			{"the most, never settled", 30, 45}, // the part that answers have of what is reserved
			{"the most, then settled", 75, 95},
			{"an estimate, then settled", 90, 105},
		} {
			if n := share(c.name); n < c.least || n > c.most {
				t.Errorf("%s: %d %% of the limit, want %d to %d", c.name, n, c.least, c.most)
			}
		}
		t.Logf("\n%s", &out)
	})
}

func TestInterrupt_EndsTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		if err := run(ctx, new(bytes.Buffer)); !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}
