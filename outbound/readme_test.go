package outbound

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const readme = "../README.md"

// comingFrom is the page whose tables have other libraries' names in the first column, and ours in the second.
const comingFrom = "COMING_FROM.md"

// pages are the pages whose links and tables are checked. They link every example.
var pages = []string{readme, "../examples/README.md"}

// pageText returns the text of a page.
func pageText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// runVirtually runs a program in a bubble of package testing/synctest, so that it prints the same times on a busy
// machine.
func runVirtually(t *testing.T, text string) (output string, err error) {
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
	must(t, os.WriteFile(program, []byte(text), 0o600))
	must(t, os.WriteFile(tests, []byte(test), 0o600))
	cmd := exec.Command("go", "test", "-count=1", program, tests)
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return string(out), err
	}
	out, err := os.ReadFile(filepath.Join(dir, "output"))
	return string(out), err
}

// Each Go block of the README is a program that prints what the paragraph after it says. The first one begins within
// the first 10 lines and ends within the first 40.
func TestReadme_ProgramsPrintTheirOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	page := pageText(t, readme)
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```\n\n(?:It prints `([^`]*)`)?").FindAllStringSubmatchIndex(page, -1)
	fatalIf(t, len(blocks) == 0 || len(blocks) != strings.Count(page, "```go"), "%d Go blocks", len(blocks))
	if first := blocks[0]; strings.Count(page[:first[2]], "\n") > 10 || strings.Count(page[:first[3]], "\n") > 40 {
		t.Error("no Go block begins within the first 10 lines and ends within the first 40")
	}
	for _, b := range blocks {
		program, want := page[b[2]:b[3]], "nothing"
		if b[4] >= 0 {
			want = page[b[4]:b[5]]
		}
		if got, err := runVirtually(t, program); err != nil || strings.TrimSpace(got) != want {
			t.Errorf("%v: the program prints\n%s\nthe page says\n%s\n%s", err, got, want, program)
		}
	}
}

// The README has at most 110 lines, and says how to try the library.
func TestReadme_IsShort(t *testing.T) {
	text := pageText(t, readme)
	if n := strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1; n > 110 {
		t.Errorf("it has %d lines, more than 110", n)
	}
	for _, command := range []string{"go run ./examples/quickstart", "go test ./..."} {
		errorIf(t, !strings.Contains(text, command), "the command %q is missing", command)
	}
}

// Each link of the pages has a target, and each page except the one for users of other libraries links every example.
func TestReadme_LinksHaveTargets(t *testing.T) {
	examples, err := filepath.Glob("../examples/*/main.go")
	fatalIf(t, err != nil || len(examples) == 0, "no examples: %v", err)
	for _, page := range append([]string{comingFrom}, pages...) {
		text := regexp.MustCompile("`[^`\\n]*`").ReplaceAllString(pageText(t, page), "") // code may look like a link
		linked := map[string]bool{}
		for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
			to := filepath.Join(filepath.Dir(page), m[1])
			linked[to] = true
			_, err := os.Stat(to)
			errorIf(t, err != nil, "%s: %v", page, err)
		}
		for _, e := range examples {
			if page != comingFrom && !linked[filepath.Dir(e)] {
				t.Errorf("%s does not link %s", page, filepath.Dir(e))
			}
		}
	}
}

// cellCode returns the code in the cells of a page's tables: all cells, or those of one column.
func cellCode(page string, column int) (all []string) {
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		if column > 0 {
			line = strings.Split(line+"||", "|")[column]
		}
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line, -1) {
			all = append(all, m[1])
		}
	}
	return all
}

// cellProgram returns a program that calls what the cells call, as a reader who copies
// them does, and ends with status 1 if any of it returns an error. An ellipsis stands
// for nothing.
func cellProgram(code []string) (text string, calls int) {
	var main strings.Builder
	for _, c := range code {
		if strings.ContainsAny(c, "({") {
			c = strings.NewReplacer(", …", "", "…", "").Replace(c)
			fmt.Fprintf(&main, "\ttry(%q)(%s)\n", c, c)
			calls++
		}
	}
	return `package main

import (
	"context"
	"fmt"
	"os"
	"time"

	. "github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound"
	contract "github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// What the cells call so.
var (
	_          = time.Hour
	_          = outbound.Cost{}
	_          = Cost{}
	_          transport.Transport
	ctx        = context.Background()
	key        = "key"
	zone       = time.UTC
	d          = time.Minute
	bucket     = Must(NewBucket(key, Limit{Capacity: 1_000, LeakRate: 1_000}))
	limiter    = queue.New(bucket, queue.Config{})
	store      = contract.NewMemory()
	job        = func(context.Context) error { return nil }
	handle     = func(context.Context, string) error { return nil }
	listen     = func(context.Context, Event) {}
	newLimiter = func(key string) (Limiter, error) { return NewBucket(key, PerSecond(10)) }
)

const n = 3

func try(code string) func(...any) {
	return func(results ...any) {
		if err, ok := results[len(results)-1].(error); ok {
			fmt.Println(code, "returns", err)
			os.Exit(1)
		}
	}
}

func main() {
` + main.String() + "}\n", calls
}

// folders are where the packages are that the cells name.
var folders = map[string]string{
	"outbound": ".", "outboundtest": "outboundtest", "fallback": "fallback", "store": "store", "redisstore": "redisstore",
	"queue": "../queue", "transport": "../transport",
}

// exports reports whether the package in a directory has a name outside of its tests.
func exports(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must(t, err)
	declared := regexp.MustCompile(`(?m)^(func |type |var |const |\t)` + name + `\b`)
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") && declared.MatchString(pageText(t, file)) {
			return true
		}
	}
	return false
}

// missing returns the names in the cells, such as outbound.Do, that no package has.
func missing(t *testing.T, code []string) (none []string) {
	t.Helper()
	for _, c := range code {
		pkg, name, ok := strings.Cut(strings.TrimLeft(c, "*"), ".")
		name, _, _ = strings.Cut(name, "(")
		if dir, ours := folders[pkg]; ok && ours && !exports(t, dir, name) {
			none = append(none, c)
		}
	}
	return none
}

func runCells(t *testing.T, text string) (output string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	cmd := exec.Command("go", "run", file)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The calls in the tables of the pages succeed, and the names in them exist.
func TestReadme_CodeInTablesRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	var code []string
	for _, page := range pages {
		found := cellCode(pageText(t, page), 0)
		errorIf(t, len(found) < 10, "%s: %d cells with code: they are not found", page, len(found))
		code = append(code, found...)
	}
	text, calls := cellProgram(code)
	fatalIf(t, calls < 3 || len(code) < 20, "%d cells with code, %d calls: they are not found", len(code), calls)
	none := missing(t, code)
	errorIf(t, len(none) > 0, "there is no %q", none)
	out, err := runCells(t, text)
	errorIf(t, err != nil, "%v\n%s%s", err, out, text)
}

// The check of the tables finds a name that does not exist, and a call that fails.
func TestReadme_CheckOfTablesCanFail(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	const page = "Not `here()`.\n\n| `NewBucket(key, …)` or `queue.ErrClosed` | `outbound.Missing` |\n|---|---|\n"
	code := cellCode(page, 0)
	none := missing(t, code)
	errorIf(t, len(code) != 3 || len(none) != 1 || none[0] != "outbound.Missing", "found %q, missing %q", code, none)
	text, _ := cellProgram(code)
	if out, err := runCells(t, text); err == nil || !strings.Contains(out, "NewBucket(key) returns ") {
		t.Errorf("a bucket without limits: %v\n%s", err, out)
	}
}

// member is a field or a method of a type, and name what the package has.
var (
	member = regexp.MustCompile(`^((?:queue\.)?[A-Z]\w*(?:\[string\])?)\.([A-Z]\w*)$`)
	name   = regexp.MustCompile(`^[A-Z]\w*$`)
)

// The calls in our column of COMING_FROM.md succeed, and the names and members in it exist.
func TestComingFrom_NamesExist(t *testing.T) {
	code := cellCode(pageText(t, comingFrom), 2)
	text, calls := cellProgram(code)
	fatalIf(t, len(code) < 80 || calls < 50, "%d cells with code, %d calls: they are not found", len(code), calls)
	for _, c := range code {
		pkg, _, _ := strings.Cut(c, ".")
		m := member.FindStringSubmatch(c)
		switch {
		case strings.ContainsAny(c, "({") || c == "ctx" || c == "store":
		case m != nil:
			text += fmt.Sprintf("\nfunc _(x %s) { _ = x.%s }\n", m[1], m[2])
		case name.MatchString(c) && exports(t, ".", c):
		case folders[pkg] != "" && len(missing(t, []string{c})) == 0:
		default:
			t.Errorf("there is no %q", c)
		}
	}
	out, err := runCells(t, text)
	errorIf(t, err != nil, "%v\n%s%s", err, out, text)
}
