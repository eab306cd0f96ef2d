package profile_test

import (
	"os/exec"
	"strings"
	"testing"
)

// A program that paces calls gets nothing but the standard library with this package. Imports
// of tests do not count: they compare structured fields with another reading.
func TestPackageImportsOnlyTheStandardLibrary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	const self = "github.com/dripfeed/dripfeed/transport/profile"
	if got := strings.Fields(string(out)); len(got) != 1 || got[0] != self {
		t.Errorf("%q are reached, want %s only", got, self)
	}
}
