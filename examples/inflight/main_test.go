package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// The sum is never above ten. All ten slots are in use again within a lease after a process is
// killed. A process may be about to hand some of them to another when they are counted. An interrupt is an error.
func TestProgram_AtMostTenInFlight(t *testing.T) {
	out, _ := exampletest.Output(t, run)
	sums := regexp.MustCompile(`in all +(\d+) of 10`).FindAllStringSubmatch(out, -1)
	if len(sums) != 9 || !strings.Contains(out, "the third is killed") {
		t.Fatal(out)
	}
	idle := 0
	for i, s := range sums {
		n, _ := strconv.Atoi(s[1])
		if n > 10 {
			t.Errorf("after %d s %d are in flight:\n%s", i+1, n, out)
		}
		if n < 8 && (i < 3 || i > 6) {
			idle++
		}
	}
	if idle > 1 {
		t.Errorf("slots are idle:\n%s", out)
	}
	exampletest.Interrupt(t, 0, run)
}
