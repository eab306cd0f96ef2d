package outbound

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cellCode returns the code in the cells of a page's tables.
func cellCode(page string) []string {
	var all []string
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "|") {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line, -1) {
				all = append(all, m[1])
			}
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

// exported returns what the package in a directory exports, outside of its tests.
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no package in %s: %v", dir, err)
	}
	names := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[d.Name.Name] = names[d.Name.Name] || d.Recv == nil
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						names[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, n := range s.Names {
							names[n.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}

// folders are where the packages are that the cells name.
var folders = map[string]string{
	"outbound": ".", "outboundtest": "outboundtest", "fallback": "fallback", "store": "store", "redisstore": "redisstore",
	"queue": "../queue", "transport": "../transport",
}

// missing returns the names in the cells, such as outbound.Do, that no package has.
func missing(t *testing.T, code []string) []string {
	t.Helper()
	var none []string
	for _, c := range code {
		pkg, name, ok := strings.Cut(strings.TrimLeft(c, "*"), ".")
		dir, ours := folders[pkg]
		name, _, _ = strings.Cut(name, "(")
		if ok && ours && !exported(t, dir)[name] {
			none = append(none, c)
		}
	}
	return none
}

func runCells(t *testing.T, text string) (output string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", file)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The bucket of the table was once an error, because its two limits bore one name.
func TestReadme_CodeInTablesRuns(t *testing.T) {
	var code []string
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		found := cellCode(string(text))
		if len(found) < 10 {
			t.Errorf("%s: %d cells with code: they are not found", page, len(found))
		}
		code = append(code, found...)
	}
	text, calls := cellProgram(code)
	if calls < 3 || len(code) < 20 {
		t.Fatalf("%d cells with code, %d calls: they are not found", len(code), calls)
	}
	if none := missing(t, code); len(none) > 0 {
		t.Errorf("there is no %q", none)
	}
	if out, err := runCells(t, text); err != nil {
		t.Errorf("%v\n%s%s", err, out, text)
	}
}

// The check of the cells must be able to fail.
func TestReadme_CheckOfTablesCanFail(t *testing.T) {
	const page = "Not `here()`.\n\n| `NewBucket(key, …)` or `queue.ErrClosed` | `outbound.Missing` |\n|---|---|\n| `outbound.Must(NewBucket(key, PerSecond(1), …))` | `*outbound.Bucket` |\n"
	code := cellCode(page)
	want := []string{"NewBucket(key, …)", "queue.ErrClosed", "outbound.Missing", "outbound.Must(NewBucket(key, PerSecond(1), …))", "*outbound.Bucket"}
	if !slices.Equal(code, want) {
		t.Fatalf("found %q", code)
	}
	if none := missing(t, code); !slices.Equal(none, []string{"outbound.Missing"}) {
		t.Errorf("missing %q", none)
	}
	text, calls := cellProgram(code)
	if calls != 2 || !strings.Contains(text, "(NewBucket(key))") {
		t.Errorf("%d calls:\n%s", calls, text)
	}
	if out, err := runCells(t, text); err == nil || !strings.Contains(out, "NewBucket(key) returns ") {
		t.Errorf("a bucket without limits: %v\n%s", err, out)
	}
}
