package main

import (
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

var update = flag.Bool("update", false, "write the calls anew into the picture")

// kept is the file with the picture, which the README shows. It alone has the layout and the
// colours, and a group for each way. To write the calls and their numbers anew into it:
//
//	go test ./examples/quickstart -run Picture -update
const kept = "quickstart.svg"

// The picture of the README is what the program shows, and is well-formed XML.
func TestPicture_ShowsTheCalls(t *testing.T) {
	var d *demo
	exampletest.Output(t, func(ctx context.Context, out io.Writer) error {
		d = threeAPIs(nil)
		return d.run(ctx, out)
	})
	file := exampletest.Must(os.ReadFile(kept))
	for text, n := range map[string]int{fmt.Sprintf("%v calls a second, and the API allows %v<", 2*d.rate, d.rate): 2, fmt.Sprintf("of them the API allows %v<", d.rate): 1} {
		if strings.Count(string(file), text) != n {
			t.Errorf("%s has not %d times the text %q", kept, n, text)
		}
	}
	groups, says := strings.SplitAfter(string(file), "</g>"), ""
	for i, w := range d.ways {
		paths, outcomes, most := w.draw(46+i*between, d.rate)
		for _, class := range []string{"o", "n", "w", "a", "x", "u"} {
			groups[i] = put(t, groups[i], `<path class="`+class+`" d="`, paths[class], `"`)
		}
		groups[i] = put(t, groups[i], `text-anchor="end">`, outcomes, "<")
		says += fmt.Sprintf("%s: %s, at most %d calls in a second. ", w.name, outcomes, most)
	}
	drawn := put(t, strings.Join(groups, ""), `<desc id="d">`, strings.TrimSpace(says), "<")
	for dec := xml.NewDecoder(strings.NewReader(drawn)); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("no browser shows it: %v\n%s", err, drawn)
		}
	}
	if *update {
		exampletest.NoError(t, os.WriteFile(kept, []byte(drawn), 0o644))
	} else if string(file) != drawn {
		t.Errorf("%s is out of date, -update writes it anew:\n%s", kept, drawn)
	}
	if len(drawn) > 25_000 {
		t.Errorf("it has %d bytes", len(drawn))
	}
}

// put returns text with a value between begin and end.
func put(t *testing.T, text, begin, value, end string) string {
	before, after, ok := strings.Cut(text, begin)
	if !ok && value != "" {
		t.Errorf("%s has no %s in the group that needs %q", kept, begin, value)
	}
	if !ok {
		return text
	}
	return before + begin + value + after[strings.Index(after, end):]
}

// The measures of a way's part of the picture, in pixels.
const (
	left    = 20
	second  = 100                            // of time
	one     = 2                              // a call in the last second
	head    = 22                             // the way's name
	curve   = 2 * rate * one                 // the calls in the last second, up to all that come
	gap     = 10                             // between the curve and the rows
	rows    = requests                       // a row for each call
	between = head + curve + gap + rows + 16 // from one way to the next
)

// marks are the marks of what became of a call, which stand where it ends.
var marks = map[byte]struct{ class, path string }{
	answered:     {"a", "h0"},
	refusedByAPI: {"x", "m-2.2-2.2l4.4 4.4m0-4.4l-4.4 4.4"},
	refusedByUs:  {"u", "m-2 0h4"},
}

// draw returns the paths of a way's calls by their class, what has become of them, and the most
// calls in a second. There is a row for each call, from when it was made to its end. Above the rows
// is a curve of how many calls the way has sent in the last second, itself included, at each call.
// What is above the API's limit is filled.
func (w *way) draw(top int, rate float64) (paths map[string]string, outcomes string, most int) {
	paths = map[string]string{}
	base := top + head + curve
	var sent []time.Duration
	for i, outcome := range w.cells {
		if outcome == answered || outcome == refusedByAPI {
			sent = append(sent, w.ended[i]) // the API answers immediately
		}
		row := base + gap + i
		if from, to := x(w.began[i]), x(w.ended[i]); from != to {
			paths["w"] += fmt.Sprintf("M%s %dH%sv1H%[1]s", from, row, to)
		}
		m := marks[outcome]
		paths[m.class] += fmt.Sprintf("M%s %d.5%s", x(w.ended[i]), row, m.path)
	}
	slices.Sort(sent)
	limit := number(float64(base) - rate*one)
	first, above := 0, ""
	for i, at := range sent {
		for at-sent[first] >= time.Second {
			first++
		}
		n := i + 1 - first
		most = max(most, n)
		point := fmt.Sprintf("%s %d", x(at), base-n*one)
		paths["n"] += map[bool]string{true: "M", false: "L"}[i == 0] + point
		if float64(n) >= rate {
			if paths["o"] == "" {
				paths["o"] = fmt.Sprintf("M%s %s", x(at), limit)
			}
			paths["o"] += "L" + point
			above = "L" + x(at) + " " + limit + "Z"
		}
	}
	if paths["o"] += above; float64(most) <= rate {
		paths["o"] = ""
	}
	outcomes = fmt.Sprintf("%d answered", w.count(answered))
	if n := w.count(refusedByAPI); n > 0 {
		outcomes += fmt.Sprintf(", %d refused by the API", n)
	}
	if n := w.count(refusedByUs); n > 0 {
		outcomes += fmt.Sprintf(", %d refused by us", n)
	} else if w.count(answered) == requests {
		outcomes += ", none refused"
	}
	return paths, outcomes, most
}

// x returns the place of a time, which is rounded so that no rounding of a float64 shows.
func x(at time.Duration) string {
	return number(left + float64(at.Round(time.Millisecond).Milliseconds())*second/1000)
}

// number returns a coordinate, to a tenth of a pixel.
func number(x float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0")
}
