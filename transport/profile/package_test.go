package profile_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program that paces calls gets nothing but the standard library with this package. Imports
// of tests do not count: they compare structured fields with another reading.
func TestDeps_OnlyTheStandardLibrary(t *testing.T) {
	out := must(exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output())
	const self = "github.com/dripfeed/dripfeed/transport/profile"
	got := strings.Fields(string(out))
	errorIf(t, len(got) != 1 || got[0] != self, "%q are reached, want %s only", got, self)
}

// go doc prints a declaration as it stands, and a profile has up to 40 lines. So each profile
// is in a variable that is not exported.
func TestDoc_ExportedVariablesAreInALine(t *testing.T) {
	files := must(filepath.Glob("vendors*.go"))
	checked := 0
	for _, name := range append(files, "profile.go") {
		set := token.NewFileSet()
		file := must(parser.ParseFile(set, name, nil, parser.ParseComments))
		for _, d := range file.Decls {
			v, ok := d.(*ast.GenDecl)
			if !ok || v.Tok != token.VAR {
				continue
			}
			spec := v.Specs[0].(*ast.ValueSpec)
			if !spec.Names[0].IsExported() {
				continue
			}
			checked++
			errorIf(t, set.Position(v.Pos()).Line != set.Position(v.End()).Line || v.Doc == nil || spec.Type == nil,
				"%s: %s is not one line with its type and a comment", name, spec.Names[0])
		}
	}
	errorIf(t, checked < 35, "checked %d profiles", checked)
}
