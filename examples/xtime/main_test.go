package main

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// The limiters of x/time continue to call for two seconds. The bucket learns of the pause from the
// first refusal, and all calls wait. An interrupt ends it.
func TestProgram_OnlyTheBucketKeepsThePause(t *testing.T) {
	exampletest.Output(t, run,
		`\nrate.Limiter +(2[0-4]|19) +(3[6-9]|4[01]) +(2\.9|3\.\d)\n`,
		`\nxrate.Limiter +(2[0-4]|19) +(3[6-9]|4[01]) +(2\.9|3\.\d)\n`,
		`\nbucket, queue +5[6-9] +[1-4] +(4\.9|5\.\d)\n$`)
	exampletest.Interrupt(t, time.Second, run)
}
