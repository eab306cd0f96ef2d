package main

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// The program says when the quota is used up, and warns once. An interrupt ends it.
func TestProgram_ForeseesTheEnd(t *testing.T) {
	exampletest.Output(t, run, `150 calls, 25\.0 a second: the quota is used up in 6s\n`, `\nevent "runs out" in [23]s\n`, `\nused up: no call leaves for 48s`)
	exampletest.Interrupt(t, 500*time.Millisecond, run)
}
