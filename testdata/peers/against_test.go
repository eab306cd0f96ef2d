package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestAgainst_BothTreesMeasureEachRow(t *testing.T) {
	o := small
	o.Rounds, o.Against = fewestRounds, thisTree
	var out, progress bytes.Buffer
	if err := run(&out, &progress, o, regexp.MustCompile("^(admitted, 1|bytes per limit).*/(dripfeed|floor)$")); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out.String())
	for _, name := range []string{"A decision, ns: admitted, 1", "A limit in memory, bytes: each"} {
		if !strings.Contains(out.String(), "\n| "+name+" | ") {
			t.Errorf("no row for %q", name)
		}
	}
	if got := strings.Count(progress.String(), "round "); got != 2*fewestRounds || strings.Contains(progress.String(), "floor") {
		t.Errorf("%d rounds in\n%s\nwant %d, without others", got, progress.String(), 2*fewestRounds)
	}
	if strings.Contains(out.String(), "larger") {
		t.Error("the tree is larger than itself")
	}
	o.Strict = true
	if err := run(io.Discard, io.Discard, o, regexp.MustCompile("floor$")); err == nil || !strings.Contains(err.Error(), "no row") {
		t.Errorf("of no rows all are good: error %v", err)
	}
}

// script writes a shell program.
func script(t *testing.T, name, text string) string {
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAgainst_FirstTreeAlternates(t *testing.T) {
	turns := filepath.Join(t.TempDir(), "turns")
	program := func(name, sample string) string {
		return script(t, name, "echo "+name+" >>"+turns+"\necho '"+sample+"'\n")
	}
	this := program("this", `{"Values": [1, 10], "Allocated": {"Objects": 3, "Bytes": 64}}`)
	other := program("other", `{"Values": [2, 20], "Wrong": 0.004, "Allocated": {"Objects": 4, "Bytes": 96}}`)
	o := small
	o.Rounds = 3
	rows, err := duel(t.Context(), io.Discard, roundTrip(o), dripfeed(), o, this, other)
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, error %v, want 2", len(rows), err)
	}
	first, second := rows[0], rows[1]
	for _, got := range []struct {
		cell cell
		want float64
	}{
		{first.values.this, 1}, {first.values.other, 2}, {second.values.this, 10}, {second.values.other, 20},
		{first.objects.this, 3}, {first.objects.other, 4}, {first.bytes.this, 64}, {first.bytes.other, 96},
	} {
		if want := []float64{got.want, got.want, got.want}; !slices.Equal(got.cell.values, want) {
			t.Errorf("got %v, want %v", got.cell.values, want)
		}
	}
	if !first.counted || second.counted {
		t.Error("what is allocated belongs to the first metric alone")
	}
	if first.wrong != 0.004 {
		t.Errorf("%v went wrong, want 0.004", first.wrong)
	}
	order, err := os.ReadFile(turns)
	if want := "this\nother\nother\nthis\nthis\nother\n"; string(order) != want || err != nil {
		t.Errorf("the order is\n%s\n%v, want\n%s", order, err, want)
	}
}

func TestAgainst_FailedMeasurementIsRepeated(t *testing.T) {
	failed := filepath.Join(t.TempDir(), "failed")
	good := `echo '{"Values": [1, 10]}'`
	once := script(t, "once", "[ -e "+failed+" ] && "+good+" && exit; touch "+failed+"; exit 1")
	o := small
	var progress bytes.Buffer
	rows, err := duel(t.Context(), &progress, roundTrip(o), dripfeed(), o, once, script(t, "good", good))
	if err != nil || len(rows) != 2 || len(rows[0].values.this.values) != 1 {
		t.Errorf("%+v, error %v, want one turn", rows, err)
	}
	if !strings.Contains(progress.String(), "once more: in a child process") {
		t.Errorf("nothing is said of the turn that failed in %q", progress.String())
	}
	if _, err := duel(t.Context(), io.Discard, roundTrip(o), dripfeed(), o, script(t, "bad", "exit 1"), once); err == nil {
		t.Error("a program that always fails is no error")
	}
}

func TestAgainst_ProgramIsBuiltWithItsTree(t *testing.T) {
	root, err := filepath.Abs(thisTree)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	if err := build(t.Context(), thisTree, program); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, dep := range info.Deps {
		if dep.Path == module {
			found = dep.Replace != nil && dep.Replace.Path == root // go.mod itself writes it in another way
		}
	}
	if !found {
		t.Errorf("the dependencies of what was built have no %s of %s", module, root)
	}

	empty := t.TempDir()
	if err := build(t.Context(), empty, program); err == nil || !strings.Contains(err.Error(), empty) {
		t.Errorf("of no tree: error %v", err)
	}
}

// TestAgainst_TreeWithPackageLeak: a source that imports package store imports package leak instead.
func TestAgainst_TreeWithPackageLeak(t *testing.T) {
	tree, program := t.TempDir(), filepath.Join(t.TempDir(), "program")
	if err := os.MkdirAll(filepath.Join(tree, "outbound", "leak"), 0o700); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]int{thisTree: 0, tree: 1} {
		overlay, err := overlayOf(at, program)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(overlay)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Replace map[string]string }
		if err := json.Unmarshal(text, &got); err != nil || len(got.Replace) != want {
			t.Fatalf("%s replaces %v, error %v, want %d sources", at, got.Replace, err, want)
		}
		for source, by := range got.Replace {
			text, err := os.ReadFile(by)
			if filepath.Base(source) != "dripfeedpostgres.go" || !strings.Contains(string(text), "\tstore \""+module+"/outbound/leak\"\n") {
				t.Errorf("%s, error %v, becomes\n%s", source, err, text)
			}
		}
	}
}

func TestAgainst_TooFewRoundsAreAnError(t *testing.T) {
	few := small
	few.Rounds, few.Against = fewestRounds-1, thisTree
	alone := small
	alone.Strict = true
	for want, o := range map[string]options{"rounds": few, "-against": alone} {
		if err := run(io.Discard, io.Discard, o, anything); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
}
