package main

import (
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// The loop gets every order with its result, at the pace of the API.
func TestProgram_ShipsAtThePaceOfTheAPI(t *testing.T) {
	// 49 intervals of 40.4 ms are 1.98 s.
	exampletest.Output(t, run, `order 7: the address does not exist\n`, `47 shipped and 3 failed in 2\.0 s\.\n`)
}

// An interrupt ends the loop, which then has no sum.
func TestProgram_InterruptEndsTheLoop(t *testing.T) {
	if out := exampletest.Interrupt(t, time.Second, run); strings.Contains(out, "shipped") {
		t.Error(out)
	}
}
