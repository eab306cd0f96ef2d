package outbound

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

// A checker finds in a program what the compiler would, inside the test's process: a go build
// for each program takes a hundred times as long.
type checker struct {
	files *token.FileSet
	types.Importer
}

var (
	checking sync.Mutex // packages are imported one at a time
	checked  checker
)

// check returns the checker of the module's own packages, and of all that these import. One go
// list tells where the compiler keeps what each of them exports.
func check(t *testing.T) checker {
	t.Helper()
	if checked.files != nil {
		return checked
	}
	exports := map[string]string{}
	for _, line := range listed(t, "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", "./outbound/...", "./queue", "./transport/...") {
		path, file, _ := strings.Cut(line, "\t")
		exports[path] = file
	}
	checked.files = token.NewFileSet()
	checked.Importer = importer.ForCompiler(checked.files, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no package of this module imports %q", path)
		}
		return os.Open(exports[path])
	})
	return checked
}

// compile returns what the compiler says against a program.
func compile(t *testing.T, text string) error {
	t.Helper()
	checking.Lock()
	defer checking.Unlock()
	c := check(t)
	file, err := parser.ParseFile(c.files, "main.go", text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	var all []error
	config := types.Config{Importer: c, Error: func(err error) { all = append(all, err) }}
	pkg, _ := config.Check("main", c.files, []*ast.File{file}, nil)
	if pkg.Name() == "main" && pkg.Scope().Lookup("main") == nil {
		all = append(all, errors.New("there is no main"))
	}
	return errors.Join(all...)
}
