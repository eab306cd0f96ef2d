package outbound

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// drawing is what the files of a package use of each other.
type drawing struct {
	files  []string               // in the order of the list in doc.go
	uses   map[[2]string][]string // from a file to another: the names that it uses of that
	shared map[[2]string][]string // those of them that are unexported fields
}

var listed = regexp.MustCompile(`(?m)^//\t([a-z_]+\.go) +\S`)

// draw type-checks the package in dir, and draws an arrow from a file to another for each
// identifier that stands for something declared at the other's package level: a type, a
// function, a method, a field, a variable or a constant.
func draw(t *testing.T, dir string) *drawing {
	t.Helper()
	set := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	d := &drawing{uses: map[[2]string][]string{}, shared: map[[2]string][]string{}}
	var parsed []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	checking.Lock()
	defer checking.Unlock()
	config := types.Config{Importer: check(t)}
	pkg, err := config.Check(module+"/outbound", set, parsed, info)
	if err != nil {
		t.Fatal(err)
	}
	in := func(p token.Pos) string { return filepath.Base(set.Position(p).Filename) }
	for id, o := range info.Uses {
		field := false
		switch generic := o.(type) { // those of an instance are declared where the generic ones are
		case *types.Var:
			o, field = generic.Origin(), generic.IsField()
		case *types.Func:
			o = generic.Origin()
		}
		f, method := o.(*types.Func)
		if o.Pkg() != pkg || o.Parent() != pkg.Scope() && !field && !(method && f.Signature().Recv() != nil) {
			continue
		}
		if arrow := [2]string{in(id.Pos()), in(o.Pos())}; arrow[0] != arrow[1] {
			add := func(m map[[2]string][]string) {
				if !slices.Contains(m[arrow], o.Name()) {
					m[arrow] = append(m[arrow], o.Name())
				}
			}
			add(d.uses)
			if field && !o.Exported() {
				add(d.shared)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "doc.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range listed.FindAllSubmatch(text, -1) {
		d.files = append(d.files, string(m[1]))
	}
	want := slices.Sorted(slices.Values(d.files))
	var are []string
	for _, path := range paths {
		if name := filepath.Base(path); name != "doc.go" && !strings.HasSuffix(name, "_test.go") {
			are = append(are, name)
		}
	}
	if !slices.Equal(want, are) {
		t.Errorf("doc.go lists %v, and the files are %v", want, are)
	}
	return d
}

// against returns the arrows from a file to one that is listed later.
func (d *drawing) against() (arrows [][2]string) {
	for i, from := range d.files {
		for _, to := range d.files[i+1:] {
			if len(d.uses[[2]string{from, to}]) > 0 {
				arrows = append(arrows, [2]string{from, to})
			}
		}
	}
	return arrows
}

// knots returns the sets of files that use each other, be it by way of others.
func (d *drawing) knots() (knots [][]string) {
	reaches := map[[2]string]bool{}
	for arrow := range d.uses {
		reaches[arrow] = true
	}
	for _, by := range d.files {
		for _, from := range d.files {
			for _, to := range d.files {
				if reaches[[2]string{from, by}] && reaches[[2]string{by, to}] {
					reaches[[2]string{from, to}] = true
				}
			}
		}
	}
	for i, f := range d.files {
		knot := []string{f}
		first := true
		for j, g := range d.files {
			if i != j && reaches[[2]string{f, g}] && reaches[[2]string{g, f}] {
				knot = append(knot, g)
				first = first && i < j
			}
		}
		if first && len(knot) > 1 {
			knots = append(knots, knot)
		}
	}
	return knots
}

// A reader who goes through the files in the order of doc.go meets what a file uses before
// the file itself.
func TestFilesUseWhatStandsBeforeThemInTheirList(t *testing.T) {
	const mostAgainst, mostInAKnot = 1, 2
	d := draw(t, ".")
	against := d.against()
	for _, arrow := range against {
		t.Logf("%s uses %v of %s", arrow[0], d.uses[arrow], arrow[1])
		if fields := d.shared[arrow]; len(fields) > 0 {
			t.Errorf("%s uses %v, unexported fields of %s, which is listed later", arrow[0], fields, arrow[1])
		}
	}
	if n := len(against); n > mostAgainst {
		t.Errorf("%d files use others that are listed later, want at most %d", n, mostAgainst)
	}
	for _, knot := range d.knots() {
		t.Logf("a knot: %v", knot)
		if len(knot) > mostInAKnot {
			t.Errorf("%d files use each other, want at most %d: %v", len(knot), mostInAKnot, knot)
		}
	}
}
