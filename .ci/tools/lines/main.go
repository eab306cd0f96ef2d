// Command lines prints how many lines of code each part of a tree has, beside its budget, and the
// largest knots of the library's packages.
//
// A line of Go code is a line with at least one token: blank lines and comments do not count.
// Lua and test files count with all their lines. A name is a top-level exported identifier.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// part is one row of the table: the folders that it counts, without those of the folders in not.
type part struct {
	name    string
	folders []string
	not     []string
	budget  int
}

var parts = []part{
	{"outbound, top package", []string{"outbound/."}, nil, 2_700},
	{"outbound/internal/core", []string{"outbound/internal/core"}, nil, 1_000},
	{"outbound/internal/key", []string{"outbound/internal/key"}, nil, 900},
	{"outbound/internal/changes", []string{"outbound/internal/changes"}, nil, 200},
	{"outbound/internal/clock", []string{"outbound/internal/clock"}, nil, 350},
	{"outbound/internal/spec", []string{"outbound/internal/spec"}, nil, 640},
	{"outbound/internal/slots", []string{"outbound/internal/slots"}, nil, 480},
	{"outbound/internal/reports", []string{"outbound/internal/reports"}, nil, 220},
	{"outbound/internal/forecast", []string{"outbound/internal/forecast"}, nil, 250},
	{"outbound/internal/members", []string{"outbound/internal/members"}, nil, 350},
	{"outbound/internal/parallel", []string{"outbound/internal/parallel"}, nil, 110},
	{"outbound/store", []string{"outbound/store"}, nil, 2_050},
	{"outbound/internal/engine", []string{"outbound/internal/engine"}, nil, 1_500},
	{"outbound/redisstore", []string{"outbound/redisstore"}, nil, 950},
	{"rowstore + pgstore", []string{"outbound/rowstore", "outbound/pgstore"}, nil, 950},
	{"outbound/fallback", []string{"outbound/fallback"}, nil, 420},
	{"outbound/shadow", []string{"outbound/shadow"}, nil, 230},
	{"stream + ledger", []string{"outbound/stream", "outbound/ledger"}, nil, 340},
	{"queue", []string{"queue/."}, nil, 900},
	{"queue/jobs", []string{"queue/jobs"}, nil, 350},
	{"transport", []string{"transport"}, []string{"transport/profile", "transport/retry"}, 900},
	{"transport/profile", []string{"transport/profile"}, nil, 2_700},
	{"transport/retry", []string{"transport/retry"}, nil, 550},
	{"watch + otel + prom", []string{"outbound/watch", "outbound/otel", "outbound/prom"}, nil, 2_000},
	{"examples", []string{"examples"}, nil, 3_800},
}

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	err := run(os.DirFS(root))
	if err == nil {
		err = knots(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lines:", err)
		os.Exit(1)
	}
}

func run(tree fs.FS) error {
	code, lua, tests, all, library := map[string]int{}, 0, 0, 0, 0
	names := 0
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		ext := filepath.Ext(path)
		if ext != ".go" && ext != ".lua" {
			return nil
		}
		text, err := fs.ReadFile(tree, path)
		if err != nil {
			return err
		}
		switch {
		case ext == ".lua":
			lua += bytes.Count(text, []byte{'\n'})
		case strings.HasSuffix(path, "_test.go"):
			tests += bytes.Count(text, []byte{'\n'})
		default:
			n := codeLines(text)
			code[path] = n
			all += n
			if !strings.HasPrefix(path, "examples/") && !strings.HasPrefix(path, "testdata/") {
				library += n
			}
			if filepath.ToSlash(filepath.Dir(path)) == "outbound" {
				k, err := exported(path, text)
				if err != nil {
					return err
				}
				names += k
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("%-28s %8s %8s\n", "part", "lines", "budget")
	row := func(name string, n, budget int) {
		over := ""
		if budget > 0 && n > budget {
			over = fmt.Sprintf("  %d over", n-budget)
		}
		b := fmt.Sprint(budget)
		if budget == 0 {
			b = ""
		}
		fmt.Printf("%-28s %8d %8s%s\n", name, n, b, over)
	}
	for _, p := range parts {
		row(p.name, sum(code, p), p.budget)
	}
	row("outbound, key, slots, reports", sum(code, part{folders: []string{"outbound/.", "outbound/internal/key", "outbound/internal/slots", "outbound/internal/reports"}}), 4_300)
	row("Keyed, of outbound", code["outbound/keyed.go"], 240)
	row("outbound, exported names", names, 66)
	row("Lua, lines of the files", lua, 560)
	row("tests, lines of the files", tests, 60_000)
	row("library", library, 0)
	row("all code", all, 0)
	return nil
}

// sum adds up the files of a part. A folder that ends in "/." counts without its subfolders.
func sum(code map[string]int, p part) int {
	n := 0
	for path, lines := range code {
		if within(path, p.folders) && !within(path, p.not) {
			n += lines
		}
	}
	return n
}

func within(path string, folders []string) bool {
	for _, folder := range folders {
		if top, ok := strings.CutSuffix(folder, "/."); ok {
			if filepath.ToSlash(filepath.Dir(path)) == top {
				return true
			}
		} else if strings.HasPrefix(path, folder+"/") {
			return true
		}
	}
	return false
}

// codeLines counts the lines with a token.
func codeLines(text []byte) int {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	lines := map[int]bool{}
	for {
		at, kind, literal := s.Scan()
		if kind == token.EOF {
			return len(lines)
		}
		if kind == token.SEMICOLON && literal != ";" { // the scanner puts it at the end of a line
			continue
		}
		first := file.Line(at)
		for i := range 1 + strings.Count(literal, "\n") {
			lines[first+i] = true
		}
	}
}

// exported counts the exported identifiers that a file declares at its top level, without methods.
func exported(path string, text []byte) (n int, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	count := func(names ...*ast.Ident) {
		for _, name := range names {
			if name.IsExported() {
				n++
			}
		}
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				count(decl.Name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					count(spec.Name)
				case *ast.ValueSpec:
					count(spec.Names...)
				}
			}
		}
	}
	return n, nil
}
