package outbound

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// How the Go blocks of README.md are compiled, each in one of three forms:
//
//   - A block that begins with "package" is a file, as it stands.
//   - A block that begins with "import" is a program: "package main" is put
//     before it, and a main after it if it has none. What follows the imports is
//     either declarations or statements. Statements go into a function that
//     returns an error, where a variable that they declare need not be used.
//   - A block that begins with "// continues" goes on in the program before it:
//     its imports, declarations or statements are added to that one's.
//
// Any other beginning is an error: nobody could tell what the names in it are.

const readme = "../README.md"

// pages are the pages whose links and tables are checked. They link every example.
var pages = []string{readme, "../examples/README.md"}

// goBlock is one ```go block: its text and the lines of its fences, from 1.
type goBlock struct {
	text       string
	begin, end int
}

func goBlocks(t *testing.T, page string) []goBlock {
	t.Helper()
	var blocks []goBlock
	var open *goBlock
	for i, line := range strings.Split(page, "\n") {
		switch {
		case open == nil && strings.TrimSpace(line) == "```go":
			open = &goBlock{begin: i + 1}
		case open != nil && strings.TrimSpace(line) == "```":
			open.end = i + 1
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	if open != nil {
		t.Fatalf("line %d: the block has no end", open.begin)
	}
	return blocks
}

// program is what becomes a Go file.
type program struct {
	whole   string // the file, if it begins with "package"
	imports []string
	decls   string
	stmts   string
}

// programs sorts the blocks into files, and names the line that each begins at.
func programs(t *testing.T, blocks []goBlock) map[int]*program {
	t.Helper()
	all := map[int]*program{}
	var last *program
	for _, b := range blocks {
		switch {
		case strings.HasPrefix(b.text, "package "):
			all[b.begin], last = &program{whole: b.text}, nil
		case strings.HasPrefix(b.text, "import "):
			last = new(program)
			all[b.begin] = last
			last.add(t, b)
		case strings.HasPrefix(b.text, "// continues") && last != nil:
			last.add(t, b)
		default:
			t.Errorf(`line %d: a Go block begins with "package", with "import", or, behind one that does, with "// continues"`, b.begin)
		}
	}
	return all
}

// add splits a block into its imports and the rest.
func (p *program) add(t *testing.T, b goBlock) {
	t.Helper()
	const head = "package main\n"
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", head+b.text, parser.ImportsOnly)
	if err != nil {
		t.Errorf("line %d: %v", b.begin, err)
		return
	}
	rest := head + b.text
	if n := len(f.Decls); n > 0 {
		rest = rest[fset.Position(f.Decls[n-1].End()).Offset:]
	} else {
		rest = rest[len(head):]
	}
	for _, spec := range f.Imports {
		line := spec.Path.Value
		if spec.Name != nil {
			line = spec.Name.Name + " " + line
		}
		p.imports = append(p.imports, line)
	}
	if _, err := parser.ParseFile(fset, "", head+rest, 0); err == nil {
		p.decls += rest
	} else {
		p.stmts += rest
	}
}

func (p *program) file() string {
	if p.whole != "" {
		return p.whole
	}
	var s strings.Builder
	s.WriteString("package main\n\n")
	seen := map[string]bool{}
	for _, line := range p.imports {
		if !seen[line] {
			seen[line] = true
			s.WriteString("import " + line + "\n")
		}
	}
	s.WriteString(p.decls)
	if p.stmts != "" {
		s.WriteString("\nfunc _() error {\n" + p.stmts + use(p.stmts) + "return nil\n}\n")
	}
	if !strings.Contains(p.decls, "\nfunc main()") {
		s.WriteString("\nfunc main() {}\n")
	}
	return s.String()
}

// use returns statements that use each variable that stmts declare themselves,
// outside of any block within.
func use(stmts string) string {
	f, err := parser.ParseFile(token.NewFileSet(), "", "package main\nfunc _() {\n"+stmts+"}", 0)
	if err != nil {
		return "" // the compiler will say it
	}
	var names []*ast.Ident
	for _, s := range f.Decls[0].(*ast.FuncDecl).Body.List {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok != token.DEFINE {
				continue
			}
			for _, x := range s.Lhs {
				if name, ok := x.(*ast.Ident); ok {
					names = append(names, name)
				}
			}
		case *ast.DeclStmt:
			for _, spec := range s.Decl.(*ast.GenDecl).Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					names = append(names, v.Names...)
				}
			}
		}
	}
	var uses strings.Builder
	for _, n := range names {
		if n.Name != "_" {
			uses.WriteString("_ = " + n.Name + "\n")
		}
	}
	return uses.String()
}

func TestReadme_BlocksCompile(t *testing.T) {
	page, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	blocks := goBlocks(t, string(page))
	if len(blocks) == 0 {
		t.Fatal("there is no Go block")
	}
	for line, p := range programs(t, blocks) {
		name := "line " + strconv.Itoa(line)
		t.Run(name, func(t *testing.T) {
			text := p.file()
			if err := compile(t, text); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		})
	}
}

// The reader who has a minute sees a program, and how to try it.
func TestReadme_IsShortAndShowsCodeFirst(t *testing.T) {
	page, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	if n := strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1; n > 110 {
		t.Errorf("it has %d lines, more than 110", n)
	}
	if blocks := goBlocks(t, text); len(blocks) == 0 || blocks[0].begin > 10 || blocks[0].end > 40 {
		t.Error("no Go block begins within the first 10 lines and ends within the first 40")
	}
	for _, command := range []string{"go run ./examples/quickstart", "go test ./..."} {
		if !strings.Contains(text, command) {
			t.Errorf("the command %q is missing", command)
		}
	}
}

// Each link of the pages has a target, and each page but the one for those who come from
// other libraries links every example.
func TestReadme_LinksHaveTargets(t *testing.T) {
	examples, err := filepath.Glob("../examples/*/main.go")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, page := range append([]string{comingFrom}, pages...) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text = regexp.MustCompile("`[^`\\n]*`").ReplaceAll(text, nil) // code may look like a link
		linked := map[string]bool{}
		for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
			to := filepath.Join(filepath.Dir(page), m[1])
			linked[to] = true
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, e := range examples {
			if page != comingFrom && !linked[filepath.Dir(e)] {
				t.Errorf("%s does not link %s", page, filepath.Dir(e))
			}
		}
	}
}

// The compilation of the README must be able to fail.
func TestReadme_CheckOfBlocksCanFail(t *testing.T) {
	const imports = "import (\n\t\"fmt\"\n\tout \"github.com/dripfeed/dripfeed/outbound\"\n)\n"
	for _, c := range []struct {
		name   string
		blocks []string
		ok     bool
	}{
		{"file", []string{"package main\n\nfunc main() { println(1) }\n"}, true},
		{"file with an error", []string{"package main\n\nfunc main() { missing() }\n"}, false},
		{"statements", []string{imports + "\nb := out.Unlimited{}\nvar p, _ = out.NewBucket(\"k\", out.PerSecond(1))\nif err := p.Hold(nil, 1); err != nil {\n\treturn err\n}\nfmt.Println()\n"}, true},
		{"statements with an unknown name", []string{imports + "\nfmt.Println(out.Missing)\n"}, false},
		{"declarations", []string{imports + "\nvar b out.Unlimited\n\nfunc main() { fmt.Println(b) }\n"}, true},
		{"unused import", []string{imports + "\nvar b out.Unlimited\n"}, false},
		{"continued", []string{imports + "\nb := out.Unlimited{}\nfmt.Println()\n", "// continues\nimport \"time\"\n\nx := b\nx, y := x, time.Now()\n"}, true},
		{"continued with a declaration", []string{imports + "\nfmt.Println(three())\n", "// continues: three\nfunc three() out.Cost { return out.Cost{3} }\n"}, true},
		{"continued with an error", []string{imports + "\nb := out.Unlimited{}\nfmt.Println()\n", "// continues\nc.Missing()\n"}, false},
		{"syntax error", []string{imports + "\nb := := 1\n"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			page := "# Title\n"
			for _, b := range c.blocks {
				page += "\n```go\n" + b + "```\n\n```\nnot Go\n```\n"
			}
			blocks := goBlocks(t, page)
			if len(blocks) != len(c.blocks) {
				t.Fatalf("found %d blocks of %d", len(blocks), len(c.blocks))
			}
			all := programs(t, blocks)
			if len(all) != 1 || all[3] == nil {
				t.Fatalf("not one program at line 3: %v", all)
			}
			text := all[3].file()
			if err := compile(t, text); (err == nil) != c.ok {
				t.Errorf("%v, want success %v, of\n%s", err, c.ok, text)
			}
		})
	}
}
