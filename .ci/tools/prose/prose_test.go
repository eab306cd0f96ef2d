package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// Each rule finds a sentence that breaks it, and none finds plain English.
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
		var got []string
		for _, s := range sentences(test.text) {
			got = append(got, habits(s, false)...)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: got %v, want %q", test.text, got, test.want)
		}
	}
	if names := habits("The episode ends.", true); names != nil {
		t.Errorf("an internal package may write of episodes, got %v", names)
	}
}

// An error text is odd if it is long, or has words that say little.
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

// Docs of exported names and pages are counted apart from comments; tests and code are not read.
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

// A count that grows is an error, which names the page and the sentence. A count that falls stays down.
func TestRatchet_FailsIfACountGrows(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []struct {
		page, text string
		lower      bool
		want       string // in the error, or empty
	}{
		{"a.md", "It tells a story. It tells two stories.", true, ""},
		{"a.md", "It tells a story. It tells two stories.", false, ""},
		{"a.md", "It tells a story. It tells two stories. It hears a story.", false, "a.md: docs.persona: 3, at most 2"},
		{"a.md", "It tells a story. It tells two stories. It hears a story.", true, "a.md:1: It hears a story."},
		{"a.md", "It tells a story.", true, ""},
		{"a.md", "It tells a story. It tells two stories.", false, "docs.persona: 2, at most 1"},
		{"a.md", "It is a story.", false, ""},
		{"b.md", "It tells a story.", false, "b.md: docs.persona: 1, at most 0"}, // a new page begins at 0
	} {
		if err := os.WriteFile(filepath.Join(dir, step.page), []byte(step.text), 0o644); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err := run(dir, filepath.Join(dir, "prose.txt"), step.lower, "", false, nil, &out)
		if (err != nil) != (step.want != "") || !strings.Contains(out.String(), step.want) {
			t.Errorf("%s: %v, want %q in\n%s", step.text, err, step.want, out.String())
		}
	}
	if _, err := parse("a docs.long"); err == nil {
		t.Error("a rule without a count is no error")
	}
}

// Each rule says what to write, and each bar of the table has a rule.
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
