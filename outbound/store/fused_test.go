package store

import (
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// The law's numbers are the same on every machine, and in a server's script: no product is fused
// with a sum, as the compiler may on arm64.
func TestApply_NoProductIsFused(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for another machine")
	}
	build := exec.Command("go", "build", "-gcflags=-S", ".")
	build.Env = append(os.Environ(), "GOARCH=arm64", "GOOS=linux", "CGO_ENABLED=0")
	listing, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%.2000s", err, listing)
	}
	if !regexp.MustCompile(`\bFMULD\b`).Match(listing) {
		t.Fatal("the listing shows no product")
	}
	for _, line := range regexp.MustCompile(`[^\n]*\bFN?M(ADD|SUB)[DS]\b[^\n]*`).FindAll(listing, -1) {
		t.Errorf("write float64(a*b)+c: %s", line)
	}
}
