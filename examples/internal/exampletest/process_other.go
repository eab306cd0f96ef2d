//go:build !linux

package exampletest

import (
	"os"
	"testing"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// End needs /proc.
func End(t *testing.T, _ string, _ []string, _ string, _ func(*os.Process, []int)) (output string, status int) {
	t.Skip("it needs /proc")
	return
}

// Outage needs /proc.
func Outage(t *testing.T, _ store.Store, _ *os.Process) { t.Skip("it needs /proc") }
