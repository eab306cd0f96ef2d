package main

import (
	"bytes"
	"debug/buildinfo"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// Both trees measure each row of dripfeed, and no other contender.
func TestAgainst_BothTreesMeasureEachRow(t *testing.T) {
	o := small
	o.Rounds, o.Against = fewestRounds, thisTree
	out, progress := measured(t, o, "^(admitted, 1|bytes per limit).*/(dripfeed|floor)$")
	for _, name := range []string{"A decision, ns: admitted, 1", "A limit in memory, bytes: each"} {
		if !strings.Contains(out, "\n| "+name+" | ") {
			t.Errorf("no row for %q", name)
		}
	}
	if got := strings.Count(progress, "round "); got != 2*fewestRounds || strings.Contains(progress, "floor") {
		t.Errorf("%d rounds in\n%s\nwant %d, without others", got, progress, 2*fewestRounds)
	}
	if strings.Contains(out, "larger") {
		t.Error("the tree is larger than itself")
	}
	o.Strict = true
	fails(t, run(io.Discard, io.Discard, o, regexp.MustCompile("floor$")), "no row")
}

// script writes a shell program.
func script(t *testing.T, name, text string) string {
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// The tree that is first changes from round to round, and each value belongs to its tree.
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
	for want, got := range map[float64]cell{
		1: first.values.this, 2: first.values.other, 10: second.values.this, 20: second.values.other,
		3: first.objects.this, 4: first.objects.other, 64: first.bytes.this, 96: first.bytes.other,
	} {
		if !slices.Equal(got.values, []float64{want, want, want}) {
			t.Errorf("got %v, want %v", got.values, want)
		}
	}
	if !first.counted || second.counted || first.wrong != 0.004 {
		t.Errorf("%+v, want that allocations belong to the first metric alone, and 0.004 is wrong", first)
	}
	order, err := os.ReadFile(turns)
	if want := "this\nother\nother\nthis\nthis\nother\n"; string(order) != want || err != nil {
		t.Errorf("the order is\n%s\n%v, want\n%s", order, err, want)
	}
}

// A measurement that fails is made once more.
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

// A program is compiled with the dripfeed of its tree.
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
	i := slices.IndexFunc(info.Deps, func(dep *debug.Module) bool { return dep.Path == module })
	if dep := info.Deps[i]; dep.Replace == nil || dep.Replace.Path != root { // go.mod itself has it in another way
		t.Errorf("%s is that of %+v, want %s", module, dep.Replace, root)
	}
	empty := t.TempDir()
	fails(t, build(t.Context(), empty, program), empty)
}

// Too few rounds, and -strict without a tree, are errors.
func TestAgainst_TooFewRoundsAreAnError(t *testing.T) {
	few := small
	few.Rounds, few.Against = fewestRounds-1, thisTree
	alone := small
	alone.Strict = true
	for want, o := range map[string]options{"rounds": few, "-against": alone} {
		fails(t, run(io.Discard, io.Discard, o, anything), want)
	}
}
