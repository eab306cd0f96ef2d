package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// A knot is a set of top-level declarations of a package each of which reaches each other. A type
// goes with its methods. To join or to split files does not change it.
const knotLines, knotNames = 1_200, 16

// knots prints the largest knot of each package of the library that has one of at least 300 lines.
func knots(root string) error {
	all, err := packages.Load(&packages.Config{Dir: root, Mode: packages.LoadSyntax}, "./outbound/...", "./queue/...", "./transport/...")
	if err != nil {
		return err
	}
	fmt.Printf("\n%-28s %8s %8s\n", "largest knot of", "lines", "names")
	for _, p := range all {
		for _, e := range p.Errors {
			err = errors.Join(err, e)
		}
		names, lines := knot(p)
		if lines < 300 {
			continue
		}
		over := ""
		if lines > knotLines || len(names) > knotNames {
			over = fmt.Sprintf("  over %d and %d", knotLines, knotNames)
		}
		_, path, _ := strings.Cut(p.PkgPath, "/dripfeed/dripfeed/")
		fmt.Printf("%-28s %8d %8d%s: %s\n", path, lines, len(names), over, strings.Join(names, " "))
	}
	return err
}

// knot returns the largest knot of a package, its longest declaration first.
func knot(p *packages.Package) (names []string, lines int) {
	size, uses, text := map[string]int{}, map[string]map[string]bool{}, map[string][]byte{}
	declare := func(name string, of ast.Node) {
		from, to := p.Fset.Position(of.Pos()), p.Fset.Position(of.End())
		if text[from.Filename] == nil {
			text[from.Filename], _ = os.ReadFile(from.Filename)
		}
		size[name] += codeLines(text[from.Filename][from.Offset:to.Offset])
		if uses[name] == nil {
			uses[name] = map[string]bool{}
		}
		ast.Inspect(of, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				uses[name][owner(p, p.TypesInfo.Uses[n])] = true
			case *ast.SelectorExpr: // of a field: its struct
				if s := p.TypesInfo.Selections[n]; s != nil {
					uses[name][named(p, s.Recv())] = true
				}
			}
			return true
		})
	}
	for _, file := range p.Syntax {
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				declare(owner(p, p.TypesInfo.Defs[d.Name]), d)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						declare(s.Name.Name, s)
					case *ast.ValueSpec:
						for _, name := range s.Names { // those of one line count once, with the first
							declare(name.Name, name)
							uses[name.Name][s.Names[0].Name] = true
							size[name.Name] = 0
						}
						declare(s.Names[0].Name, s)
					}
				}
			}
		}
	}
	delete(size, "")
	delete(size, "_")
	reach := map[string]map[string]bool{}
	for name := range size {
		reach[name] = reached(uses, name)
	}
	for name := range size {
		var all []string
		n := 0
		for other := range reach[name] {
			if reach[other][name] {
				all, n = append(all, other), n+size[other]
			}
		}
		if len(all) > 1 && n > lines {
			names, lines = all, n
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(size[b]-size[a], strings.Compare(a, b)) })
	return names, lines
}

// reached returns what a declaration uses, and what that uses.
func reached(uses map[string]map[string]bool, from string) map[string]bool {
	seen, next := map[string]bool{}, []string{from}
	for len(next) > 0 {
		name := next[0]
		next = next[1:]
		for to := range maps.Keys(uses[name]) {
			if to != "" && !seen[to] {
				seen[to] = true
				next = append(next, to)
			}
		}
	}
	return seen
}

// owner returns the top-level declaration that an object of the package is or belongs to, or "".
func owner(p *packages.Package, o types.Object) string {
	f, _ := o.(*types.Func)
	switch {
	case o == nil || o.Pkg() != p.Types:
		return ""
	case f != nil && f.Signature().Recv() != nil:
		return named(p, f.Signature().Recv().Type())
	case o.Parent() == p.Types.Scope():
		return o.Name()
	}
	return ""
}

// named returns the name of a type of the package, or "".
func named(p *packages.Package, t types.Type) string {
	if to, ok := t.(*types.Pointer); ok {
		t = to.Elem()
	}
	if n, ok := t.(*types.Named); ok && n.Obj().Pkg() == p.Types && n.Obj().Parent() == p.Types.Scope() {
		return n.Obj().Name()
	}
	return ""
}
