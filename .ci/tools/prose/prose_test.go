package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestRules_FindHabits(t *testing.T) {
	long := strings.Repeat("a word and ", 10) + "an end."
	for _, test := range []struct{ text, want string }{
		{long, "long"},
		{"Of buckets in flight it counts none.", "invert"},
		{"Nor is a refused call charged.", "invert"},
		{"The longest reset of a policy of which a part remains.", "which"},
		{"The caller books anew after the hold.", "archaic"},
		{"Forecast tells when calls leave.", "persona"},
		{"The state says nothing of the store.", "persona"},
		{"It is 0 if nobody waits.", "nobody"},
		{"A d that is not above 0 does nothing.", "negations"},
		{"The longest wait of a call. 0: as long as its context allows.", "stub"},
		{"The call loses its place in the queue.", "private"},
		{"Units come back after the window, and a call gives back its cost.", "private"},
		{"One trip to the server.", "inner"},
		{"A new episode begins with the refusal.", "inner"},

		{"Hold ignores d <= 0.", ""},
		{"A reservation takes one round trip to the store.", ""},
		{"RoundTripper takes the place of the default transport.", ""},
		{"Use `nobody tells` as a name.", ""},
		{"If MaxWait is zero, only the context bounds the wait.", ""},
		{"See [the other page](nobody.md) for more.", ""},
	} {
		t.Run(test.text, func(t *testing.T) {
			var got []string
			for _, s := range sentences(test.text) {
				got = append(got, habits(s, false)...)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %v, want %q", got, test.want)
			}
		})
	}
	if names := habits("The episode ends.", true); names != nil {
		t.Errorf("an internal package may write of episodes, got %v", names)
	}
}

func TestRules_FindOddErrors(t *testing.T) {
	for text, want := range map[string]bool{
		"outbound: rate limited: %q is on hold after a 429, retry in %v":  false,
		"redisstore: the store has lost the key":                          true,
		"outbound: the bucket has no room":                                true,
		"outbound: %q is no limit":                                        true,
		"outbound: " + strings.Repeat("word ", maxErrorWords):             true,
		"store: a cost of %v is above the capacity of %v, which is wrong": true,
	} {
		if got := isOddError(text); got != want {
			t.Errorf("%q: odd %v, want %v", text, got, want)
		}
	}
}

const source = `// Package p waits in vain.
package p

import "errors"

// Get tells the time.
func Get() error { return errors.New("p: it is gone") }

// T is a type.
type T struct {
	N int // 0: one
	n int // 0: two
}

// a hears.
//
//	code tells
func a() {}

type hidden struct{}

// Do tells the time.
func (hidden) Do() {}
`

func TestRead_SeparatesDocsFromComments(t *testing.T) {
	pages, err := read(fstest.MapFS{
		"p/p.go":        {Data: []byte(source)},
		"p/p_test.go":   {Data: []byte("package p // it tells nobody")},
		"README.md":     {Data: []byte("# It tells\n\n- It tells.\n- one two three\n\n| It hears the | b |\n\n```\nit tells it\n```\n")},
		".git/a.md":     {Data: []byte("It tells nobody.")},
		".github/a.md":  {Data: []byte("It tells a b.")},
		"p/.hidden/b.c": {Data: []byte("It tells nobody.")},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "# What .ci/prose counts. A count may fall (.ci/prose -write), and must not grow.\n" +
		".github/a.md docs.persona=1\n" +
		"README.md docs.persona=2\n" +
		"p comments.persona=2 comments.stub=1 docs.archaic=1 docs.persona=1 docs.stub=1 errors.odd=1\n"
	if got := format(tally(pages)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestRatchet_FailsIfACountGrows(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "prose.txt")
	page := filepath.Join(dir, "a.md")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(lower bool, want error, lines ...string) {
		t.Helper()
		var out strings.Builder
		err := run(dir, file, lower, "", false, nil, &out)
		if (err == nil) != (want == nil) {
			t.Errorf("got %v, want %v:\n%s", err, want, out.String())
		}
		for _, line := range lines {
			if !strings.Contains(out.String(), line) {
				t.Errorf("%q is not in\n%s", line, out.String())
			}
		}
	}
	write(page, "It tells a story. It tells two stories.")
	check(true, nil)
	check(false, nil)
	write(page, "It tells a story. It tells two stories. It hears a story.")
	check(false, os.ErrInvalid, "a.md: docs.persona: 3, at most 2", "a.md:1: It hears a story.")
	check(true, os.ErrInvalid) // -write does not raise a count
	write(page, "It tells a story.")
	check(true, nil)
	write(page, "It tells a story. It tells two stories.")
	check(false, os.ErrInvalid, "docs.persona: 2, at most 1")
	write(page, "It is a story.")
	write(filepath.Join(dir, "b.md"), "It tells a story.") // a new page begins at 0
	check(false, os.ErrInvalid, "b.md: docs.persona: 1, at most 0")
}

func TestCounts_ParseIsTheInverseOfFormat(t *testing.T) {
	text := format(map[string]counts{"b": {"docs.long": 2, "errors.odd": 1}, "a": {"docs.long": 1, "docs.which": 0}, "c": {}})
	all, err := parse(text)
	if err != nil || format(all) != text || len(all) != 2 {
		t.Errorf("got %v, %v of\n%s", all, err, text)
	}
	if _, err := parse("a docs.long"); err == nil {
		t.Error("a rule without a count is no error")
	}
}

func TestRules_HaveASentence(t *testing.T) {
	names := []string{"long"}
	for _, r := range sentenceRules {
		if r.instead == "" {
			t.Errorf("%s does not say what to write", r.name)
		}
		names = append(names, r.name)
	}
	for _, b := range bars {
		if !slices.Contains(names, b.rule) {
			t.Errorf("the table has a rule %s that does not exist", b.rule)
		}
	}
}
