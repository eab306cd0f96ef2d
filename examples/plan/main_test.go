package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPlanTellsWhatBoundsTheCalls(t *testing.T) {
	for _, c := range []struct {
		args string
		want string // … is what differs with the turns that the workers take
	}{
		{"-limit 10/s,100/m:window -calls 250 -workers 3 -callers 2 -latency 100ms", `
250 calls, made by 3 workers with 2 callers each.
Once it goes, a call takes 100ms.

duration   2m7s, 1.973 calls a second
waits      …
refusals   0

limit                     used       most at a time   binds
10/s                      20 %             10 of 10    21 %
100/m:window              80 %           100 of 100    79 %
the callers                                             0 %

What bounds it: 100/m:window, 79 % of the time.
Without that it takes 25.15s or more: 10/s.
`},
		{"-limit 100/s -calls 100 -workers 2 -callers 1 -latency 100ms", `
duration   5.01s, 19.96 calls a second
waits      p50 0s, p95 0s, longest 10ms
refusals   0

limit                     used       most at a time   binds
100/s                     20 %            20 of 100     0 %
the callers                                           100 %

What bounds it: the callers, 100 % of the time.
Without that it takes 1s or more: 100/s.
`},
		// A queue books no place that is more than a day away.
		{"-limit 1/48h -calls 3 -workers 1 -callers 1", "\nrefusals   2\n           A call that would wait too long is refused,\n"},
		{"-limit 10/m -calls 20 -workers 1", "\n10/m spaces calls evenly.\nTry 10/m:window, too.\n"},
		{"-limit 10/s,100/m -calls 50", "\nWhat bounds it: 100/m, 100 % of the time.\n"},
		{"-limit 10/h:window -calls 11 -workers 1", "\nwaits      p50 0s, p95 1h, longest 1h\n"},
		{"-limit 9/s:window -calls 9 -workers 2 -latency 0s", "\nduration   0s, all at once\n"},
	} {
		var out, stderr bytes.Buffer
		status := run(strings.Fields(c.args), &out, &stderr)
		missing := false
		for want := range strings.SplitSeq(c.want, "…") {
			missing = missing || !strings.Contains(out.String(), want)
		}
		if status != 0 || missing {
			t.Errorf("%s: status %d, want%s\ngot\n%s%s", c.args, status, c.want, &out, &stderr)
		}
	}
}

func TestEveryLimitIsKept(t *testing.T) {
	limits, err := parseLimits("30/s,100/10s:window,2500/m")
	if err != nil {
		t.Fatal(err)
	}
	r, err := plan{limits: limits, calls: 500, workers: 5, callers: 4, latency: 50 * time.Millisecond}.try()
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Departures.Len(); n != 500 {
		t.Errorf("%d calls have left", n)
	}
	for _, l := range limits {
		if err := r.Departures.CheckWindow(l.n, l.per); err != nil {
			t.Error(err)
		}
		if took := r.Took; took < l.least(500) {
			t.Errorf("%v, and %s takes %v at least", took, l.Name, l.least(500))
		}
	}
}

func TestPictureHasAPartForEachLimit(t *testing.T) {
	for _, c := range []struct {
		args  string
		parts int
	}{
		{"-limit 10/s,100/m:window,200/h -calls 250", 4},
		{"-limit 1/s,2/s,3/s,4/s,5/s,6/s,7/s,8/s -calls 1000 -latency 1h", 9},
		{"-limit 9/s:window -calls 1 -latency 0s", 2},
	} {
		svg := filepath.Join(t.TempDir(), "drawn.svg")
		var out, stderr bytes.Buffer
		if status := run(append(strings.Fields(c.args), "-svg", svg), &out, &stderr); status != 0 {
			t.Fatalf("%s: status %d, %s", c.args, status, &stderr)
		}
		drawn, err := os.ReadFile(svg)
		if err != nil {
			t.Fatal(err)
		}
		for dec := xml.NewDecoder(bytes.NewReader(drawn)); ; {
			if _, err := dec.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: no browser shows it: %v\n%s", c.args, err, drawn)
			}
		}
		for _, bad := range []string{"NaN", "Inf", "-9223", "<script", "href"} {
			if bytes.Contains(drawn, []byte(bad)) {
				t.Errorf("%s: it has %s:\n%s", c.args, bad, drawn)
			}
		}
		// A name for each part, and the picture's own.
		if n := bytes.Count(drawn, []byte(`<text class="h"`)); n != c.parts+1 || len(drawn) > 25_000 {
			t.Errorf("%s: %d headings in %d bytes, want %d:\n%s", c.args, n, len(drawn), c.parts+1, drawn)
		}
	}
}

func TestWhatCannotBeTriedIsRefused(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"-limit x", "want calls per time"},
		{"-limit /s", "above 0"},
		{"-limit 0/s", "above 0"},
		{"-limit -1/s", "above 0"},
		{"-limit NaN/s", "want a number of calls"},
		{"-limit Inf/s", "above 0"},
		{"-limit 1e10/s", "at most 1e9"},
		{"-limit 1e-300/s", "invalid"},
		{"-limit 1e-7/s -calls 100", "too long"},
		{"-limit 10/", "want s, m, h, d"},
		{"-limit 10/w", "want s, m, h, d"},
		{"-limit 10/-1s", "from 1ms"},
		{"-limit 10/1us", "from 1ms"},
		{"-limit 10/9000h", "366 days"},
		{"-limit 10/s:fixed", "only window"},
		{"-limit 0.5/s:window", "room for 1"},
		{"-limit 10/s,,10/m", "want calls per time"},
		{"-limit 10/s,10/s", "twice"},
		{"-limit 1/s,2/s,3/s,4/s,5/s,6/s,7/s,8/s,9/s", "at most 8"},
		{"-limit 1.00000000000000000000000000/s", "24 characters"},
		{"-calls 0", "-calls needs"},
		{"-calls -5", "-calls needs"},
		{"-calls 500001", "-calls needs"},
		{"-calls 99999999999999999999", "value out of range"},
		{"-workers 0", "-workers needs"},
		{"-workers 1001", "-workers needs"},
		{"-callers 0", "-callers needs"},
		{"-workers 1000 -callers 21", "-callers needs 1 to 20"},
		{"-callers 9223372036854775807", "-callers needs"},
		{"-latency -1s", "-latency needs"},
		{"-latency 2h", "-latency needs"},
		{"-latency NaN", "invalid value"},
		{"-limit 1/d -calls 500000", "too long to try with 10 workers"},
		{"-limit 1/366d", "want s, m, h, d"},
		{"-limit 1/8784h:window -calls 500000", "too long to try"},
		{"-limit 1/s -latency 1h -workers 1 -callers 1 -calls 500000", "(the callers): too long"},
		{"more", "one argument too many"},
	} {
		var out, stderr bytes.Buffer
		start := time.Now()
		status := run(strings.Fields(c.args), &out, &stderr)
		if status != 2 || out.Len() > 0 || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%s: status %d, want 2 and %q:\n%s%s", c.args, status, c.says, &stderr, &out)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("%s: said so after %v", c.args, took)
		}
	}
	var out, stderr bytes.Buffer
	if status := run([]string{"-calls", "1", "-svg", t.TempDir()}, &out, &stderr); status != 1 || stderr.Len() == 0 {
		t.Errorf("a picture that cannot be written: status %d, %s", status, &stderr)
	}
}

func TestTimesUnderThePictureFit(t *testing.T) {
	for took := time.Millisecond; took < mostHours*time.Hour; took += 1 + took/7 {
		every := step(took)
		if n := took/every + 1; n < 2 || n > 7 {
			t.Errorf("%v: %d times, one every %v", took, n, every)
		}
		for at := every; at <= took; at += every {
			if len(tick(at)) > 7 {
				t.Errorf("%v: %q is too long", took, tick(at))
			}
		}
	}
	for at, want := range map[time.Duration]string{
		0: "0", 20 * time.Millisecond: "20 ms", 1500 * time.Millisecond: "1.5 s", 90 * time.Second: "90 s",
		2 * time.Minute: "2 min", 90 * time.Minute: "1 h 30", 12 * time.Hour: "12 h", 48 * time.Hour: "2 d", 36 * time.Hour: "36 h",
	} {
		if got := tick(at); got != want {
			t.Errorf("%v: %q, want %q", at, got, want)
		}
	}
}
