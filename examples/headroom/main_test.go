package main

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// Users wait behind batch work, and with a Headroom they do not. Calls of batch work still leave. An interrupt ends it.
func TestProgram_UsersBeforeBatch(t *testing.T) {
	exampletest.Output(t, run, `Headroom 0    █{5,} +\d\.\d s, \d+ batch calls`, `Headroom 0\.25 █ +0\.0 s, \d\d batch calls`)
	exampletest.Interrupt(t, 500*time.Millisecond, run) // in the second way
}
