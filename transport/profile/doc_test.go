package profile_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// go doc prints a declaration as it stands, and a profile has up to 40 lines. So each profile
// is in a variable that is not exported.
func TestExportedVariablesAreDeclaredInALine(t *testing.T) {
	files, err := filepath.Glob("vendors*.go")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, name := range append(files, "profile.go") {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
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
			if set.Position(v.Pos()).Line != set.Position(v.End()).Line || v.Doc == nil || spec.Type == nil {
				t.Errorf("%s: %s is not one line with its type and a comment", name, spec.Names[0])
			}
		}
	}
	if checked < 40 {
		t.Errorf("checked %d profiles", checked)
	}
}
