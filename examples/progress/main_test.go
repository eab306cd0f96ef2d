package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// From the refusal on, and so behind a hold and in windows, each line names the end within 5 % of what
// remains, or the second that it is cut to. Each line before says no later time than the truth.
func TestProgress_EndIsRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 600
		var out stamped
		exampletest.NoError(t, run(t.Context(), &out, false, n, false))
		end := time.Now()
		for i, line := range out.lines {
			var done int
			var said string
			exampletest.Must(fmt.Sscanf(line, "%d of 600, done at %s", &done, &said))
			at := exampletest.Must(time.Parse(time.TimeOnly, said))
			y, m, d := out.at[i].Date()
			at = time.Date(y, m, d, at.Hour(), at.Minute(), at.Second(), 0, time.Local)
			off, within := at.Sub(end), end.Sub(out.at[i])/20+time.Second
			if off > within || off < -within && done > 2*n/3+8 {
				t.Errorf("%s, and it was done at %s", line, end.Format(time.TimeOnly))
			}
		}
		if len(out.lines) != 21 {
			t.Errorf("%d lines", len(out.lines))
		}
	})
}

// stamped keeps lines and when they were written.
type stamped struct {
	lines []string
	at    []time.Time
}

func (s *stamped) Write(p []byte) (int, error) {
	s.lines, s.at = append(s.lines, string(p)), append(s.at, time.Now())
	return len(p), nil
}

// A terminal gets a bar, and without a number of calls the end is unknown.
func TestProgress_BarAndUnknownEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, lines bytes.Buffer
		exampletest.NoError(t, run(t.Context(), &out, true, 50, false))
		if s := out.String(); !strings.Contains(s, "done at ") || !strings.Contains(s, "(50/50)") || !strings.Contains(s, "█") {
			t.Errorf("%q", s)
		}
		exampletest.NoError(t, run(t.Context(), &lines, false, 50, true))
		if s := lines.String(); strings.Contains(s, "done at") || strings.Count(s, "end unknown\n") < 10 {
			t.Error(s)
		}
	})
}
