package main

import (
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

// measured returns what a run that succeeds prints, and its progress.
func measured(t *testing.T, o options, only string) (tables, progress string) {
	t.Helper()
	var w, p strings.Builder
	if err := run(&w, &p, o, regexp.MustCompile(only)); err != nil {
		t.Fatal(err)
	}
	return w.String(), p.String()
}

// fails checks that an error has a text.
func fails(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want one with %q", err, text)
	}
}

// Each contender has a cell for each scenario that it offers.
func TestRun_MeasuresAllThatAContenderOffers(t *testing.T) {
	all, _, err := newServers() // which are not started
	if err != nil {
		t.Fatal(err)
	}
	out, _ := measured(t, small, "")
	for _, contest := range contests(small, all) {
		for _, s := range contest.scenarios {
			_, table, _ := strings.Cut(out, "| "+s.section+" |")
			table, _, _ = strings.Cut(table, "\n\n")
			for _, c := range contest.list {
				if s.offered(c) && !strings.Contains(table, "\n| "+c.name+" | ") {
					t.Errorf("%s is missing from %q", c.name, s.section)
				}
			}
		}
	}
	if strings.Contains(out, "NaN") || strings.Contains(out, "Inf") {
		t.Error("a cell is not a number")
	}
}

// -only selects scenarios and contenders.
func TestRun_MeasuresOnlyWhatMatches(t *testing.T) {
	twice := small
	twice.Rounds = 2
	want := "round 1: admitted, 2 goroutines/x/time/rate\nround 2: admitted, 2 goroutines/x/time/rate\n"
	if _, got := measured(t, twice, "^admitted, 2 .*/x/time/rate$"); got != want {
		t.Errorf("measured\n%swant\n%s", got, want)
	}
}

// A contender that refuses what it should admit ends the run.
func TestRun_WrongRefusalStopsIt(t *testing.T) {
	// 1001 are enough for the check before the measurement, and for nothing of that.
	for left, want := range map[int]string{1001: "came out wrong", 0: "decision 1 is not true"} {
		c := contender{name: "fickle", admit: func() (func() bool, error) {
			return func() bool { left--; return left > 0 }, nil
		}}
		_, err := measure(io.Discard, decision(small, true, 1), small, []contender{c}, anything)
		fails(t, err, want)
	}
}

// A table has medians, ratios to the first row, and a mark for wrong decisions.
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

	var out strings.Builder
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

// Goroutines share the calls among them, also if these cannot be divided evenly.
func TestRun_GoroutinesShareTheCalls(t *testing.T) {
	for _, goroutines := range []int{1, 2, 64} {
		var sum tally
		fan(goroutines, 1001, func(_, n int) { sum.add(n, 0) })
		if got := sum.all.Load(); got != 1001 {
			t.Errorf("%d goroutines took %d of 1001 calls", goroutines, got)
		}
	}
}
