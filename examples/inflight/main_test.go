package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

func TestProgram_AtMostTenInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		sums := regexp.MustCompile(`in all +(\d+) of 10`).FindAllStringSubmatch(out.String(), -1)
		if len(sums) != 9 || !strings.Contains(out.String(), "the third is killed") {
			t.Fatalf("printed\n%s", out.String())
		}
		for i, s := range sums {
			n, _ := strconv.Atoi(s[1])
			if least := 8; n > 10 || n < least && (i < 3 || i > 6) {
				t.Errorf("after %d s %d are in flight:\n%s", i+1, n, out.String())
			}
		}
	})
}

func TestInterrupt_IsReported(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, new(bytes.Buffer)); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}
