package main

import (
	"os"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// The program names what bounds the calls: a limit, the callers or nothing. A ; is a space within an
// argument.
func TestPlan_NamesTheLimitThatBinds(t *testing.T) {
	for args, wants := range map[string][]string{
		"-limit 10;per;1s -limit 100;in;any;1m -calls 250 -workers 3 -callers 2 -latency 100ms": {`
250 calls, made by 3 workers with 2 callers each.
Once it goes, a call takes 100ms.

duration   2m6.6s, 118.4 calls a minute
`, `
without 10 per 1s                   2m2.4s
without 100 in any 1m               25.25s
with twice the callers              2m6.6s

What bounds it: 100 in any 1m.
`},
		"-limit 100;per;1s -calls 100 -workers 2 -callers 1 -latency 100ms": {`
duration   5.01s, 1198 calls a minute
waits      p50 0s, p95 0s, `, `
without 100 per 1s                  5s
with twice the callers              2.53s

What bounds it: the callers.
`},
		// A queue books no reservation that is more than a day away.
		"-limit 1;per;48h -calls 3 -workers 1 -callers 1":    {"\nrefusals   2\n           A call that would wait too long is refused,\n"},
		"-limit 10;per;1s -limit 100;per;1m -calls 50":       {"\nWhat bounds it: 100 per 1m.\n"},
		"-limit 100;per;day;UTC -calls 150 -workers 2":       {"\nduration   24h0m0s, ", "\nWhat bounds it: 100 per day UTC.\n"},
		"-limit 10;in;any;1h -calls 11 -workers 1":           {"\nwaits      p50 0s, p95 1h0m0s, longest 1h0m0s\n"},
		"-limit 9;in;any;1s -calls 9 -workers 2 -latency 0s": {"\nduration   0s, ", "\nWhat bounds it: nothing of these alone.\n"},
	} {
		out := exampletest.Exec(t, &example, args)
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s: want%s\ngot\n%s", args, want, out)
			}
		}
	}
}

// A night of a backlog and users is drawn by the hour, with what must wait and what would help. In the
// night of the example clocks change.
func TestPlan_DrawsTheHoursOfANight(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	want := exampletest.Must(os.ReadFile("testdata/night.txt"))
	if out := exampletest.Exec(t, &example, "-file limits.json -backlog backlog.json"); out != string(want) {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

// A plan that is wrong or takes too long to try is refused.
func TestPlan_RefusesWhatItCannotTry(t *testing.T) {
	exampletest.RefusesArguments(t, &example, map[string]string{
		"-file limits.json":                       "no such file",
		"-backlog backlog.json":                   "no such file",
		"-file limits.json -backlog main.go":      "main.go: invalid character",
		"-file backlog.json -backlog limits.json": "backlog.json: json: cannot",
		"-limit x":                          "is not a number",
		"-limit 0;per;1s":                   "-limit",
		"-limit 10;per;1s -limit 10;per;1s": "two limits of one unit",
		"-calls 0":                          "want a number from 1 to 200000",
		"-workers 101":                      "want a number from 1 to 100",
		"-callers 0":                        "want a number from 1 to 100",
		"-latency -1s":                      "-latency needs",
		"-latency 2h":                       "-latency needs",
		"-limit 1;per;24h -calls 200000":    "too long to try with 10 workers",
		"-limit 1;in;any;24h -calls 200000": "too long to try",
		"-limit 1;per;1s -latency 1h -workers 1 -callers 1 -calls 200000": "(the callers): too long",
	})
}
