package outbound

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// printed is where the page says what a program prints.
var printed = regexp.MustCompile("(?m)^It prints `([^`]*)`")

// outputBehind returns what the page says, behind a block, that the program prints.
func outputBehind(page string, b goBlock) string {
	m := printed.FindStringSubmatch(strings.Join(strings.Split(page, "\n")[b.end:], "\n"))
	if m == nil {
		return ""
	}
	return m[1]
}

// runInVirtualTime runs a program in a bubble of package testing/synctest, so that the
// times that it prints are the same on a busy machine.
func runInVirtualTime(t *testing.T, text string) (output string, err error) {
	t.Helper()
	const test = `package main

import (
	"os"
	"testing"
	"testing/synctest"
)

func TestProgram(t *testing.T) {
	out, err := os.Create("output")
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = out
	defer func() { os.Stdout = stdout }() // where the verdict goes
	synctest.Test(t, func(*testing.T) { main() })
}
`
	dir := t.TempDir()
	program, tests := filepath.Join(dir, "main.go"), filepath.Join(dir, "main_test.go")
	for name, text := range map[string]string{program: text, tests: test} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-count=1", program, tests)
	cmd.Dir = ".."
	if said, err := cmd.CombinedOutput(); err != nil {
		return string(said), err
	}
	out, err := os.ReadFile(filepath.Join(dir, "output"))
	return string(out), err
}

func TestReadme_FirstProgramPrintsItsOutput(t *testing.T) {
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	blocks := goBlocks(t, page)
	if len(blocks) == 0 || !strings.HasPrefix(blocks[0].text, "package main\n") {
		t.Fatal("the first Go block is no program")
	}
	want := outputBehind(page, blocks[0])
	if got, err := runInVirtualTime(t, blocks[0].text); err != nil || strings.TrimSpace(got) != want || want == "" {
		t.Errorf("%v\nit prints\n%s\nthe page says\n%s", err, got, want)
	}
}

// The check of the output must be able to find another output, or none.
func TestReadme_CheckOfOutputCanFail(t *testing.T) {
	const page = "It prints `before`\n\n```go\npackage main\n```\n\nIt prints `one two`. More.\n"
	if got, want := outputBehind(page, goBlocks(t, page)[0]), "one two"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if got := outputBehind("```go\n```\n", goBlock{begin: 1, end: 2}); got != "" {
		t.Errorf("found %q behind nothing", got)
	}
}
