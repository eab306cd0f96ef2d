// Command mutants breaks a package in small ways, one at a time, and lists those that its tests do not see.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// mutant is one change of a file: the bytes from a position to another become text.
type mutant struct {
	file     string
	from, to int
	text     string
}

// swaps are operators and functions, and what each becomes.
var swaps = map[string]string{
	"+": "-", "-": "+", "*": "/", "/": "*", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
	"&&": "||", "||": "&&", "max": "min", "min": "max", "+=": "-=", "-=": "+=", "true": "false", "false": "true",
}

// mutants returns all mutants of a file.
func mutants(file string) (all []mutant, err error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	at := func(p token.Pos) int { return fset.Position(p).Offset }
	swap := func(p token.Pos, old string) {
		if text, ok := swaps[old]; ok {
			all = append(all, mutant{file, at(p), at(p) + len(old), text})
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok == token.VAR
		case *ast.BinaryExpr:
			swap(n.OpPos, n.Op.String())
		case *ast.Ident:
			swap(n.Pos(), n.Name)
		case *ast.AssignStmt:
			if swap(n.TokPos, n.Tok.String()); n.Tok == token.ASSIGN && len(n.Lhs) == 1 {
				all = append(all, mutant{file, at(n.Lhs[0].Pos()), at(n.Lhs[0].End()), "_"})
			}
		case *ast.ExprStmt:
			all = append(all, mutant{file, at(n.Pos()), at(n.End()), ""})
		}
		return true
	})
	return all, nil
}

// survives reports whether the mutant builds, and whether the tests of the packages by pass with it.
func (m *mutant) survives(dir string, by []string) (builds, passes bool, err error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return false, false, err
	}
	tmp, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return false, false, err
	}
	defer os.RemoveAll(tmp)
	changed, overlay := filepath.Join(tmp, filepath.Base(m.file)), filepath.Join(tmp, "overlay.json")
	text := append(append(bytes.Clone(source[:m.from]), m.text...), source[m.to:]...)
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: changed}})
	if err != nil {
		return false, false, err
	}
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return false, false, err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return false, false, err
	}
	run := func(args ...string) bool {
		cmd := exec.Command("go", append(append([]string{args[0], "-overlay", overlay}, args[1:]...), by...)...)
		cmd.Dir = dir
		return cmd.Run() == nil
	}
	if !run("vet") {
		return false, false, nil
	}
	return true, run("test", "-short", "-failfast", "-timeout", "2m") && run("test", "-failfast", "-timeout", "10m"), nil
}

func main() {
	seed := flag.Uint64("seed", 1, "the seed by which mutants are drawn")
	most := flag.Int("n", 60, "how many mutants to try")
	by := flag.String("by", ".", "the packages whose tests judge, as go test names them from the directory")
	flag.Parse()
	if err := run(*seed, *most, flag.Arg(0), strings.Fields(*by)); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(seed uint64, most int, dir string, by []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	var all []mutant
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		more, err := mutants(file)
		if err != nil {
			return err
		}
		all = append(all, more...)
	}
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	tried, survivors := 0, 0
	for i := range all {
		if tried == most {
			break
		}
		builds, passes, err := all[i].survives(dir, by)
		if err != nil {
			return err
		}
		if !builds {
			continue
		}
		if tried++; passes {
			survivors++
			fmt.Println(all[i].describe())
		}
	}
	fmt.Printf("%d of %d mutants survive, of %d that there are\n", survivors, tried, len(all))
	return nil
}

// describe returns where the mutant is, its line, and what it makes of it.
func (m *mutant) describe() string {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return err.Error()
	}
	begin := bytes.LastIndexByte(source[:m.from], '\n') + 1
	end := m.to + bytes.IndexByte(append(source[m.to:], '\n'), '\n')
	return fmt.Sprintf("%s:%d: %s  // %q becomes %q", filepath.Base(m.file), 1+bytes.Count(source[:m.from], []byte("\n")),
		strings.TrimSpace(string(source[begin:end])), source[m.from:m.to], m.text)
}
