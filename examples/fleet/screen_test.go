package main

import (
	"bytes"
	"strings"
	"testing"
)

var someResults = []result{
	{Mode: none, Seconds: 10, Used: 0.123, Answered: 61, Refused: 200, Jain: 0.5, WaitP50: 1, WaitP99: 2},
	{Mode: shared, Seconds: 3, Used: 0.999, Answered: 150, Jain: 1, WaitP50: 0.2, WaitP99: 0.4, CountedBy: "server", PerCall: 1.01,
		Workers: []tally{{Answered: 75}, {Answered: 75}}},
}

func TestOutputIsPlainLinesUnlessItIsATerminal(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out}
	s.draw(someResults[:1])
	s.draw(someResults)
	s.end(someResults)
	want := ` 10 s  none    12.3 % used, 61 answered, 200 refused
  3 s  shared  99.9 % used, 150 answered, 0 refused

       quota answered refused failed Jain     wait, s Redis
           %                                p50   p99
none    12.3       61     200      0 0.50  1.00  2.00     -
shared  99.9      150       0      0 1.00  0.20  0.40  1.01
`
	if out.String() != want {
		t.Errorf("it is\n%s\nwant\n%s", &out, want)
	}
}

func TestTerminalShowsOneTableThatIsDrawnAgain(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, live: true}
	s.draw(someResults[:1]) // two lines of header, one row, an empty line, the workers
	s.draw(someResults)
	s.end(someResults)
	text := out.String()
	drawings := strings.Split(text, "\x1b[?7l") // a terminal that is too narrow cuts them
	if len(drawings) != 3 || !strings.HasPrefix(drawings[2], "\x1b[5A\r\x1b[J ") || !strings.HasSuffix(drawings[1], "\x1b[?7h") {
		t.Fatalf("it does not go back up to the first line: %q", text)
	}
	if _, last, ok := strings.Cut(drawings[2], "\x1b[?7h\x1b[6A\r\x1b[J"); !ok || strings.Count(last, "\n") != 4 || strings.Contains(last, "\x1b") {
		t.Errorf("the table at the end is in %q", drawings[2])
	}
	if !strings.Contains(text, "shared, 3 s, by worker: 75 75") {
		t.Errorf("the workers are missing: %q", text)
	}
}

func TestManyWorkersAreCutToOneLine(t *testing.T) {
	r := result{Mode: shared, Workers: make([]tally, 100)}
	if line := workersLine(&r); len(line) > 60 || !strings.Contains(line, " more)") {
		t.Errorf("%d characters: %q", len(line), line)
	}
}

func TestNothingIsWiderThan60Columns(t *testing.T) {
	var out bytes.Buffer
	o := newOutcome(params{Workers: 1000, Waiters: 1000, Rate: 99_999.9, Burst: 1e6, Seconds: 86_400, Kill: 10_000, Seed: 1<<32 - 1, Modes: allModes},
		&server{what: "a redis-server of its own, version 7.0.15"})
	s := &screen{out: &out}
	s.intro(&o)
	s.draw([]result{{Mode: shared, Seconds: 86_400, Used: 1, Answered: 99_999_999, Refused: 999}})
	s.end(append(someResults, result{Mode: shared, Used: 1, Answered: 9_999_999, Refused: 9_999_999, WaitP50: 10, WaitP99: 99.9, CountedBy: "server", PerCall: 10}))
	for line := range strings.Lines(out.String()) {
		if n := len(strings.TrimSuffix(line, "\n")); n > 60 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
