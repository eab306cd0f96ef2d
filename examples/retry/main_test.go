package main

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// row returns the numbers of the line that begins with a name.
func row(t *testing.T, name, text string) []float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` +(.*)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no line of %q in\n%s", name, text)
	}
	var numbers []float64
	for _, field := range strings.Fields(m[1]) {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

func TestProgram_RetriesAllCallsWithFewRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out, 150); err != nil {
			t.Error(err)
		}
		alone, ours := row(t, "plain client", out.String()), row(t, "queue and retry", out.String())
		if ours[0] != 150 || ours[1] != 0 {
			t.Errorf("%v answered and %v lost, want 150 and 0", ours[0], ours[1])
		}
		if ours[3] > 0 || alone[3] < 50 {
			t.Errorf("%v refused, and %v alone, want 0 and many", ours[3], alone[3])
		}
		if ours[5] > 25 {
			t.Errorf("it took %v s, want about 18", ours[5])
		}
		t.Logf("\n%s", &out)
	})
}

func TestInterrupt_EndsTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(4*time.Second, cancel)
		start := time.Now()
		if err := run(ctx, io.Discard, 150); err == nil || err.Error() != "interrupted" {
			t.Error(err)
		}
		if took := time.Since(start); took != 4*time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}
