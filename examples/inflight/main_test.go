package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// The sum is never above ten. All ten slots are in use again within a lease after a process is
// killed.
func TestProgram_AtMostTenInFlight(t *testing.T) {
	out, _ := exampletest.Output(t, run)
	sums := regexp.MustCompile(`in all +(\d+) of 10`).FindAllStringSubmatch(out, -1)
	if len(sums) != 9 || !strings.Contains(out, "the third is killed") {
		t.Fatal(out)
	}
	for i, s := range sums {
		if n, _ := strconv.Atoi(s[1]); n > 10 || n < 8 && (i < 3 || i > 6) {
			t.Errorf("after %d s %d are in flight:\n%s", i+1, n, out)
		}
	}
}

// An interrupt is an error.
func TestProgram_InterruptIsReported(t *testing.T) { exampletest.Interrupt(t, 0, run) }
