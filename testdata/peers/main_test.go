package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if childMain() { // copies of this program measure the waiting
		return
	}
	os.Exit(m.Run())
}

var (
	anything = regexp.MustCompile("")
	small    = options{Rounds: 1, Benchtime: time.Millisecond, Keys: 2000, Waiters: 1000, Window: 500, Idle: time.Millisecond}
)

func TestRun_MeasuresAllThatAContenderOffers(t *testing.T) {
	all, lacks, err := newServers() // which are not started
	if err != nil {
		t.Fatal(err)
	}
	t.Log(lacks)
	var out bytes.Buffer
	if err := run(&out, io.Discard, small, anything); err != nil {
		t.Fatal(err)
	}
	for _, contest := range contests(small, all) {
		for _, s := range contest.scenarios {
			table := section(out.String(), s.section)
			if table == "" {
				t.Errorf("no table for %q", s.section)
				continue
			}
			for _, c := range contest.list {
				if s.offered(c) && !strings.Contains(table, "\n| "+c.name+" | ") {
					t.Errorf("%s is missing from %q", c.name, s.section)
				}
			}
		}
	}
	if strings.Contains(out.String(), "NaN") || strings.Contains(out.String(), "Inf") {
		t.Error("a cell is not a number")
	}
	t.Log("\n" + out.String())
}

// section returns the table with this first heading.
func section(tables, heading string) string {
	_, table, _ := strings.Cut(tables, "| "+heading+" |")
	table, _, _ = strings.Cut(table, "\n\n")
	return table
}

func TestRun_MeasuresOnlyWhatMatches(t *testing.T) {
	var out, progress bytes.Buffer
	twice := small
	twice.Rounds = 2
	if err := run(&out, &progress, twice, regexp.MustCompile("^admitted, 2 .*/x/time")); err != nil {
		t.Fatal(err)
	}
	want := "round 1: admitted, 2 goroutines/x/time/rate\nround 2: admitted, 2 goroutines/x/time/rate\n"
	if progress.String() != want {
		t.Errorf("measured\n%swant\n%s", progress.String(), want)
	}
}

func TestRun_WrongRefusalStopsIt(t *testing.T) {
	left := 5000 // enough for the check before the measurement, not for all of it
	fickle := contender{name: "fickle", admit: func() (func() bool, error) {
		return func() bool { left--; return left > 0 }, nil
	}}
	_, err := measure(io.Discard, decision(small, true, 1), small, []contender{fickle}, anything)
	if err == nil || !strings.Contains(err.Error(), "came out wrong") {
		t.Errorf("got error %v", err)
	}

	stingy := contender{name: "stingy", admit: func() (func() bool, error) {
		return func() bool { return false }, nil
	}}
	_, err = measure(io.Discard, decision(small, true, 1), small, []contender{stingy}, anything)
	if err == nil || !strings.Contains(err.Error(), "decision 1 is not true") {
		t.Errorf("got error %v", err)
	}
}

func TestTable_ShowsMediansAndRatios(t *testing.T) {
	list := []contender{{name: "least"}, {name: subject}, {name: "slow", peer: true}, {name: "quick", peer: true}}
	c := &column{section: "Thing, ns", metric: metric{name: "once", digits: 1, ratio: true}, list: list, cells: map[string]*cell{}}
	for who, values := range map[string][]float64{
		"least": {10, 90, 10}, subject: {15, 14, 16}, "slow": {40, 30}, "quick": {20, 20, 99},
	} {
		for _, v := range values {
			c.add(who, v, 0)
		}
	}
	c.add("slow", 35, 0.004)

	var out bytes.Buffer
	writeTables(&out, []*column{c})
	writeSubject(&out, []*column{c})
	want := `| Thing, ns | once |
|---|---:|
| least | 10.0 (1.00×) |
| dripfeed | 15.0 (1.50×) |
| slow | 35.0 (3.50×) \* |
| quick | 20.0 (2.00×) |

\* some of these decisions went wrong, at most 0.4 %

| dripfeed | median | to the first row | best peer | to the best peer |
|---|---:|---:|---:|---:|
| Thing, ns: once | 15.0 | 1.50× | quick | 0.75× |
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestRun_GoroutinesShareTheCalls(t *testing.T) {
	for _, goroutines := range []int{1, 2, 64} {
		var sum tally
		fan(goroutines, 1001, func(_, n int) { sum.add(n, 0) })
		if got := sum.all.Load(); got != 1001 {
			t.Errorf("%d goroutines took %d of 1001 turns", goroutines, got)
		}
	}
}
