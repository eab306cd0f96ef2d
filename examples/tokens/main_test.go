package main

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// Calls that reserve the most and never settle use a part of the limit, as large as the part of it
// that answers have. Calls that settle use more, and estimates that settle almost all. An interrupt ends the workers.
func TestProgram_EstimatesUseMoreOfTheLimit(t *testing.T) {
	_, took := exampletest.Output(t, run,
		`the most, never settled .* (3\d|4[0-5]) %\n`,
		`the most, then settled .* (7[5-9]|8\d|9[0-5]) %\n`,
		`an estimate, then settled .* (9\d|10[0-5]) %\n`)
	if took > runFor {
		t.Errorf("it took %v, longer than %v", took, runFor)
	}
	exampletest.Interrupt(t, time.Second, run)
}
