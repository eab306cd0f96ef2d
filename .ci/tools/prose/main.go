// Command prose counts habits of style in the docs, the comments, the Markdown and the error texts
// of a tree, and compares the counts with a file. A count may fall, and must not grow.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

func main() {
	write := flag.Bool("write", false, "lower the counts in the file to those of the tree")
	list := flag.String("list", "", "print what a rule matches: persona, docs.persona, all")
	table := flag.Bool("table", false, "print the share of sentences that each rule matches in docs; * is above the bar")
	flag.Parse()
	root, file := flag.Arg(0), flag.Arg(1)
	if err := run(root, file, *write, *list, *table, flag.Args()[2:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

// counts are the numbers of one package or page, by "kind.rule". What is absent is 0.
type counts map[string]int

func run(root, file string, write bool, list string, table bool, only []string, out io.Writer) error {
	pages, err := read(os.DirFS(root))
	if err != nil {
		return err
	}
	switch {
	case list != "":
		printHits(pages, list, only, out)
		return nil
	case table:
		printTable(pages, out)
		return nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) && write {
		return save(file, tally(pages))
	} else if err != nil {
		return err
	}
	bounds, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	grown := compare(bounds, pages, out)
	if write {
		if err := save(file, lower(bounds, tally(pages))); err != nil {
			return err
		}
	}
	if grown > 0 {
		return fmt.Errorf("%d counts have grown: rewrite a sentence that is listed above", grown)
	}
	return nil
}

func tally(pages map[string]*page) map[string]counts {
	all := map[string]counts{}
	for name, p := range pages {
		all[name] = counts{}
		for rule, hits := range p.hits {
			all[name][rule] = len(hits)
		}
	}
	return all
}

// lower takes the smaller of both counts. What is not in the tree goes.
func lower(bounds, found map[string]counts) map[string]counts {
	low := map[string]counts{}
	for name, c := range found {
		low[name] = counts{}
		for rule, n := range c {
			low[name][rule] = min(n, bounds[name][rule])
		}
	}
	return low
}

// most is how many hits of one count compare prints.
const most = 10

// compare prints the hits of each count that is above its bound.
func compare(bounds map[string]counts, pages map[string]*page, out io.Writer) (grown int) {
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		for _, rule := range slices.Sorted(maps.Keys(pages[name].hits)) {
			hits := pages[name].hits[rule]
			if len(hits) <= bounds[name][rule] {
				continue
			}
			grown++
			fmt.Fprintf(out, "%s: %s: %d, at most %d%s\n", name, rule, len(hits), bounds[name][rule], instead(rule))
			for i, h := range hits {
				if i == most {
					fmt.Fprintf(out, "\tand %d others: .ci/prose -list %s %s\n", len(hits)-most, rule, name)
					break
				}
				fmt.Fprintf(out, "\t%s: %s\n", h.place, h.text)
			}
		}
	}
	return grown
}

func instead(name string) string {
	_, name, _ = strings.Cut(name, ".")
	for _, r := range sentenceRules {
		if r.name == name {
			return ": write " + r.instead
		}
	}
	return ""
}

func printHits(pages map[string]*page, list string, only []string, out io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		if len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		for _, rule := range slices.Sorted(maps.Keys(pages[name].hits)) {
			if list != "all" && list != rule && !strings.HasSuffix(rule, "."+list) && !strings.HasPrefix(rule, list+".") {
				continue
			}
			for _, h := range pages[name].hits[rule] {
				fmt.Fprintf(out, "%s: %s: %s\n", h.place, rule, h.text)
			}
		}
	}
}

// parse reads lines of a name and pairs of a rule and a count.
func parse(text string) (map[string]counts, error) {
	all := map[string]counts{}
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		c := counts{}
		for _, word := range words[1:] {
			rule, number, _ := strings.Cut(word, "=")
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("line %d: %q is not rule=count", i+1, word)
			}
			c[rule] = n
		}
		all[words[0]] = c
	}
	return all, nil
}

// format is the inverse of parse. A page without hits has no line.
func format(all map[string]counts) string {
	var s strings.Builder
	s.WriteString("# What .ci/prose counts. A count may fall (.ci/prose -write), and must not grow.\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		line := name
		for _, rule := range slices.Sorted(maps.Keys(all[name])) {
			if n := all[name][rule]; n > 0 {
				line += fmt.Sprintf(" %s=%d", rule, n)
			}
		}
		if line != name {
			s.WriteString(line + "\n")
		}
	}
	return s.String()
}

func save(file string, all map[string]counts) error {
	return os.WriteFile(file, []byte(format(all)), 0o644)
}

// bars are the most in a hundred sentences that well written Go packages have; invert and nobody allow one or two in all.
var bars = []struct {
	rule    string
	percent float64
	hits    int
}{
	{"long", 6, 0}, {"invert", 0, 0}, {"which", 7, 0}, {"archaic", 0, 0}, {"persona", 1, 0}, {"nobody", 0, 2},
	{"negations", 3, 0}, {"stub", 0, 0}, {"private", 1, 0}, {"inner", 0, 0},
}

func printTable(pages map[string]*page, out io.Writer) {
	fmt.Fprintf(out, "%-36s %5s", "docs: hits", "sent.")
	for _, b := range bars {
		fmt.Fprintf(out, " %9s", b.rule)
	}
	fmt.Fprintf(out, " %9s %9s %9s\n", "wide", "comments", "errors")
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		p := pages[name]
		fmt.Fprintf(out, "%-36s %5d", name, p.sentences[docs])
		for _, b := range bars {
			n := len(p.hits[docs+"."+b.rule])
			mark := " "
			if n > max(b.hits, int(b.percent*float64(p.sentences[docs])/100)) && n > 1 || n > 0 && b.percent == 0 && b.hits == 0 {
				mark = "*"
			}
			fmt.Fprintf(out, " %8d%s", n, mark)
		}
		other := 0
		for rule, hits := range p.hits {
			if strings.HasPrefix(rule, comments+".") {
				other += len(hits)
			}
		}
		fmt.Fprintf(out, " %9d %9d %4d/%d\n", len(p.hits[docs+".wide"]), other, len(p.hits[errorsOf+".odd"]), p.sentences[errorsOf])
	}
}
