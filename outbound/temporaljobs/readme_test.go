package temporaljobs_test

import (
	"os"
	"strings"
	"testing"
)

// The README's program is that of the Example, which compiles.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(readme), "```go\n")[1:]
	if len(blocks) != 2 {
		t.Errorf("%d programs", len(blocks))
	}
	for _, block := range blocks {
		program, _, ok := strings.Cut(block, "```")
		if !ok || !strings.Contains(string(example), program) {
			t.Errorf("the Example has no\n%s", program)
		}
	}
	if lines := strings.Count(string(readme), "\n"); lines > 60 {
		t.Errorf("%d lines are more than a screen", lines)
	}
}
