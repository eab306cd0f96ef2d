package main

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

func calls150(ctx context.Context, out io.Writer) error { return run(ctx, out, 150) }

// The API refuses many calls of the plain client. The other client loses no call in about 18 s. An interrupt ends both.
func TestProgram_RetriesAllCallsWithFewRefusals(t *testing.T) {
	//                answered lost attempts refused failed sec
	exampletest.Output(t, calls150,
		`plain client +\d+ +\d+ +\d+ +([5-9]\d|1\d\d) `,
		`queue and retry +150 +0 +\d+ +0 +\d+ +(\d|1\d|2[0-4])\.\d\n`)
	exampletest.Interrupt(t, 4*time.Second, calls150)
}
