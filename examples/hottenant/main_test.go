package main

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// With queues all tenants wait for more than a second, and with a Scheduler the hot one alone. An interrupt ends it.
func TestProgram_HotTenantLeavesWorkersFree(t *testing.T) {
	exampletest.Output(t, run,
		`queue  acme, 40 jobs  █{20,} 2\.\d s\n +bolt,  4 jobs  █{12,} [12]\.\d s\n +cone,  3 jobs  █{10,} [12]\.\d s\n`,
		`jobs   acme, 40 jobs  █{20,} 2\.\d s\n +bolt,  4 jobs  █{1,9} 0\.\d s\n +cone,  3 jobs  █{1,9} 0\.\d s\n`)
	exampletest.Interrupt(t, time.Second, run) // in the first way
}
