package main

import (
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// hit is a sentence, a line or an error text that breaks a rule.
type hit struct {
	place, text string
}

// page is a package or a Markdown file: its hits by "kind.rule", and how many sentences it has by kind.
type page struct {
	hits      map[string][]hit
	sentences map[string]int
}

// The kinds of text. Markdown and exported docs are one kind: users read both.
const (
	docs     = "docs"
	comments = "comments"
	errorsOf = "errors"
)

// read reads every package and Markdown file of a tree, without tests and dot folders other than .github.
func read(tree fs.FS) (map[string]*page, error) {
	pages := map[string]*page{}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && name != ".github" && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		key := ""
		switch {
		case strings.HasSuffix(name, ".md"):
			key = name
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			key = path.Dir(name)
		default:
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		p := pages[key]
		if p == nil {
			p = &page{map[string][]hit{}, map[string]int{}}
			pages[key] = p
		}
		if key == name {
			p.markdown(name, string(text))
			return nil
		}
		return p.source(name, text)
	})
	return pages, err
}

func (p *page) add(kind, rule, place, text string) {
	p.hits[kind+"."+rule] = append(p.hits[kind+"."+rule], hit{place, text})
}

func (p *page) paragraph(kind, file string, line int, text string) {
	for _, s := range sentences(text) {
		p.sentences[kind]++
		for _, rule := range habits(s, innerPlace(file) || innerPlace(path.Dir(file))) {
			p.add(kind, rule, file+":"+strconv.Itoa(line), s)
		}
	}
}

// source reads the comments and the error texts of a Go file.
func (p *page) source(name string, text []byte) error {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	exported := exportedDocs(file)
	for _, group := range file.Comments {
		kind := comments
		if exported[group] {
			kind = docs
		}
		line := set.Position(group.Pos()).Line
		for i, c := range group.List {
			if !strings.Contains(c.Text, "\n") && len([]rune(c.Text)) > maxWidth && !strings.HasPrefix(c.Text, "//go:") {
				p.add(kind, "wide", name+":"+strconv.Itoa(line+i), c.Text)
			}
		}
		p.blocks(kind, name, line, new(comment.Parser).Parse(group.Text()).Content)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		for _, lit := range errorTexts(n) {
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				continue
			}
			p.sentences[errorsOf]++
			if isOddError(text) {
				p.add(errorsOf, "odd", name+":"+strconv.Itoa(set.Position(lit.Pos()).Line), text)
			}
		}
		return true
	})
	return nil
}

func (p *page) blocks(kind, name string, line int, blocks []comment.Block) {
	for _, b := range blocks {
		switch b := b.(type) {
		case *comment.Paragraph:
			p.paragraph(kind, name, line, plain(b.Text))
		case *comment.List:
			for _, item := range b.Items {
				p.blocks(kind, name, line, item.Content)
			}
		}
	}
}

func plain(text []comment.Text) string {
	var s strings.Builder
	for _, t := range text {
		switch t := t.(type) {
		case comment.Plain:
			s.WriteString(string(t))
		case comment.Italic:
			s.WriteString(string(t))
		case *comment.Link:
			s.WriteString(plain(t.Text))
		case *comment.DocLink:
			s.WriteString(plain(t.Text))
		}
	}
	return s.String()
}

// exportedDocs finds the comments that go doc prints.
func exportedDocs(file *ast.File) map[*ast.CommentGroup]bool {
	found := map[*ast.CommentGroup]bool{}
	put := func(groups ...*ast.CommentGroup) {
		for _, g := range groups {
			found[g] = true
		}
	}
	put(file.Doc)
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Name.IsExported() && (decl.Recv == nil || exportedType(decl.Recv.List[0].Type)) {
				put(decl.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.IsExported() {
						put(decl.Doc, spec.Doc, spec.Comment)
						fields(spec.Type, put)
					}
				case *ast.ValueSpec:
					if spec.Names[0].IsExported() {
						put(decl.Doc, spec.Doc, spec.Comment)
					}
				}
			}
		}
	}
	delete(found, nil)
	return found
}

func exportedType(t ast.Expr) bool {
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

func fields(t ast.Expr, put func(...*ast.CommentGroup)) {
	var list *ast.FieldList
	switch t := t.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	default:
		return
	}
	for _, f := range list.List {
		if len(f.Names) == 0 || f.Names[0].IsExported() {
			put(f.Doc, f.Comment)
		}
	}
}

// errorTexts finds the texts of errors.New and fmt.Errorf, and those in a method Error.
func errorTexts(n ast.Node) []*ast.BasicLit {
	switch n := n.(type) {
	case *ast.CallExpr:
		name := ""
		switch f := n.Fun.(type) {
		case *ast.SelectorExpr:
			if x, ok := f.X.(*ast.Ident); ok {
				name = x.Name + "." + f.Sel.Name
			}
		case *ast.Ident:
			name = f.Name
		}
		if len(n.Args) > 0 && (name == "errors.New" || name == "fmt.Errorf" || name == "sentinel") {
			if lit, ok := n.Args[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				return []*ast.BasicLit{lit}
			}
		}
	case *ast.FuncDecl:
		if n.Name.Name != "Error" || n.Recv == nil || n.Body == nil {
			return nil
		}
		var found []*ast.BasicLit
		ast.Inspect(n.Body, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && strings.Contains(lit.Value, " ") {
				found = append(found, lit)
			}
			return true
		})
		return found
	}
	return nil
}

var item = regexp.MustCompile(`^\s*(?:[-*]|\d+\.) `)

// markdown reads paragraphs, list items and the cells of tables, not code.
func (p *page) markdown(name, text string) {
	fenced, start := false, 0
	var words []string
	end := func() {
		p.paragraph(docs, name, start, strings.Join(words, " "))
		words = nil
	}
	for i, line := range strings.Split(text, "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(bare, "```"):
			fenced = !fenced
			end()
		case fenced, bare == "", strings.HasPrefix(bare, "#"), strings.HasPrefix(line, "    ") && len(words) == 0:
			end()
		case strings.HasPrefix(bare, "|"):
			end()
			for _, cell := range strings.Split(bare, "|") {
				p.paragraph(docs, name, i+1, cell)
			}
		default:
			if mark := item.FindString(line); mark != "" {
				end()
				bare = strings.TrimSpace(line[len(mark):])
			}
			if len(words) == 0 {
				start = i + 1
			}
			words = append(words, bare)
		}
	}
	end()
}
