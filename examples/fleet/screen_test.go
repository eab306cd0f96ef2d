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
	want := ` 10 s  none     12.3 %       61     200      0 0.5000   1.000 s   2.000 s          -
  3 s  shared   99.9 %      150       0      0 1.0000   0.200 s   0.400 s       1.01

          quota answered refused failed   Jain  wait p50  wait p99 Redis/call
none     12.3 %       61     200      0 0.5000   1.000 s   2.000 s          -
shared   99.9 %      150       0      0 1.0000   0.200 s   0.400 s       1.01
`
	if out.String() != want {
		t.Errorf("it is\n%s\nwant\n%s", &out, want)
	}
}

func TestTerminalShowsOneTableThatIsDrawnAgain(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, live: true}
	s.draw(someResults[:1]) // header, one row, an empty line, the workers
	s.draw(someResults)
	s.end(someResults)
	text := out.String()
	if strings.Count(text, "\x1b[4A") != 1 || strings.Count(text, "\x1b[5A") != 1 {
		t.Errorf("it does not go back up to the first line: %q", text)
	}
	last := text[strings.LastIndex(text, "\x1b[5A"):]
	if strings.Count(last, "\n") != 3 || !strings.HasSuffix(last, "\x1b[J") {
		t.Errorf("the table at the end is %q", last)
	}
	if !strings.Contains(text, "shared, 3 s, answered by worker: 75 75") {
		t.Errorf("the workers are missing: %q", text)
	}
}

func TestManyWorkersAreCutToOneLine(t *testing.T) {
	r := result{Mode: shared, Workers: make([]tally, 100)}
	if line := workersLine(&r); len(line) > 80 || !strings.Contains(line, " more)") {
		t.Errorf("%d characters: %q", len(line), line)
	}
}
