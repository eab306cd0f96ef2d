package main

import (
	"bytes"
	"debug/buildinfo"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestBothTreesTakeTheirTurnsAtEachRow(t *testing.T) {
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

func TestWhoIsFirstChangesFromRoundToRound(t *testing.T) {
	dir := t.TempDir()
	turns := filepath.Join(dir, "turns")
	script := func(name, sample string) string {
		path := filepath.Join(dir, name)
		text := "#!/bin/sh\necho " + name + " >>" + turns + "\necho '" + sample + "'\n"
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	this := script("this", `{"Values": [1, 10], "Allocated": {"Objects": 3, "Bytes": 64}}`)
	other := script("other", `{"Values": [2, 20], "Allocated": {"Objects": 4, "Bytes": 96}}`)
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
	order, err := os.ReadFile(turns)
	if want := "this\nother\nother\nthis\nthis\nother\n"; string(order) != want || err != nil {
		t.Errorf("the order is\n%s\n%v, want\n%s", order, err, want)
	}
}

func TestAProgramIsBuiltWithTheTreeThatItIsToldAbout(t *testing.T) {
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
			found = dep.Replace != nil && dep.Replace.Path == root // go.mod itself names it another way
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

func TestAComparisonThatCannotTellIsNotBegun(t *testing.T) {
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
