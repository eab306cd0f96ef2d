package main

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// A job runs again and again with a queue, twice with a Scheduler, and once if it is booked. An interrupt ends it.
func TestProgram_SendsAtThePaceOfTheAPI(t *testing.T) {
	// 39 intervals of 40.4 ms are 1.58 s; the look that follows comes at 1.75 s.
	exampletest.Output(t, run,
		`queue  [1-9]{40}\n +1\d\d runs, all sent in 1\.[78] s`,
		`jobs   [12]{40}\n +[67]\d runs, all sent in (1\.9|2\.[0-2]) s`,
		`booked 1{40}\n +40 runs, all sent in (1\.9|2\.[0-2]) s`,
		`In no second did more than 25 reports go\.\nThe API allows 25\.`)
	exampletest.Interrupt(t, 3*time.Second, run) // in the second way
}
