package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var update = flag.Bool("update", false, "write the picture anew")

// picture is the file with the picture, which the README shows. To draw it anew:
//
//	go test ./examples/quickstart -run Picture -update
const picture = "quickstart.svg"

// The measures of the picture, in its own pixels. On a screen of 360 pixels its text is still
// 10 pixels high.
const (
	width   = 440
	left    = 20 // of the plots, and of all text
	top     = 44 // of the first plot
	second  = 100
	row     = 2                // of one call
	plot    = calls * row      // the height of a plot
	between = plot + 18        // from one plot to the next
	bottom  = top + 3*between  // of the last plot
	height  = bottom + 22 + 48 // with the axis and the legend
)

// The picture brings its own background: it follows the reader's system, which the page
// around it may not do. It names no font that a machine may lack.
const style = `text{font:14px system-ui,sans-serif;fill:#16202a}.h{font-weight:600}.d{fill:#56616d}` +
	`path{fill:none;stroke-linecap:round}.b{fill:#fff}.g{stroke:#dfe4ea}` +
	`.a{stroke:#0f7391;stroke-width:4.4}.w{stroke:#0f7391;opacity:.35}.x{stroke:#b3261e;stroke-width:1.4}.u{stroke:#8a5a00;stroke-width:1.6}` +
	`@media(prefers-color-scheme:dark){text{fill:#e6ebf0}.d{fill:#9aa7b4}.b{fill:#0d1117}.g{stroke:#2a343e}` +
	`.a,.w{stroke:#3fb3d3}.x{stroke:#ff8a80}.u{stroke:#f2c14e}}`

// marks are the marks of what became of a call, which stand where it ends.
var marks = map[byte]struct{ class, path string }{
	answered:     {"a", "h0"},
	refusedByAPI: {"x", "m-2-2l4 4m0-4l-4 4"},
	refusedByUs:  {"u", "m-2 0h4"},
}

// x returns the place of a time.
func x(at time.Duration) string {
	const perPixel = int64(time.Second / time.Millisecond / second)
	ms := at.Round(time.Millisecond).Milliseconds() // so that no rounding of a float64 shows
	return strconv.FormatFloat(left+float64(ms)/float64(perPixel), 'f', -1, 64)
}

// draw returns the ways as a picture: a row for each call, from when it was made to its end.
func draw(d *demo) string {
	var s strings.Builder
	title := fmt.Sprintf("%v calls a second, and the API allows %v", 2*d.rate, d.rate)
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%d" role="img" aria-labelledby="t d">`+"\n", width, height)
	fmt.Fprintf(&s, "<title id=\"t\">%s</title>\n<desc id=\"d\">", title)
	for i, w := range d.ways {
		fmt.Fprintf(&s, "%s%s: %s.", strings.Repeat(" ", min(i, 1)), w.name, strings.Join(w.outcomes(), ", "))
	}
	fmt.Fprintf(&s, "</desc>\n<style>%s</style>\n<rect class=\"b\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", style, width, height)
	fmt.Fprintf(&s, `<text class="h" x="%d" y="26">%s</text>`+"\n", left, title)
	for at := range 5 {
		fmt.Fprintf(&s, `<path class="g" d="M%s %dV%d"/><text class="d" x="%[1]s" y="%[4]d" text-anchor="middle">%[5]d s</text>`+"\n",
			x(time.Duration(at)*time.Second), top-4, bottom-8, bottom+8, at)
	}
	for i, w := range d.ways {
		w.draw(&s, top+i*between)
	}
	key(&s, left, bottom+34, answered, "answered")
	key(&s, left+190, bottom+34, refusedByAPI, "refused by the API")
	key(&s, left, bottom+56, waiting, "waiting")
	key(&s, left+190, bottom+56, refusedByUs, "refused by us, not sent")
	s.WriteString("</svg>\n")
	return s.String()
}

// draw adds the way's plot.
func (w *way) draw(s *strings.Builder, top int) {
	paths := map[string]string{}
	for i, outcome := range w.cells {
		y := top + i*row + row/2
		if w.ended[i] > w.began[i] {
			paths["w"] += fmt.Sprintf("M%s %dH%s", x(w.began[i]), y, x(w.ended[i]))
		}
		m := marks[outcome]
		paths[m.class] += fmt.Sprintf("M%s %d%s", x(w.ended[i]), y, m.path)
	}
	for _, class := range []string{"w", "a", "x", "u"} {
		if p := paths[class]; p != "" {
			fmt.Fprintf(s, `<path class="%s" d="%s"/>`+"\n", class, p)
		}
	}
	fmt.Fprintf(s, `<text class="h" x="%d" y="%d" text-anchor="end">%s</text>`+"\n", width-left-8, top+12, w.name)
	for i, line := range w.outcomes() {
		fmt.Fprintf(s, `<text class="d" x="%d" y="%d" text-anchor="end">%s</text>`+"\n", width-left-8, top+31+18*i, line)
	}
}

// outcomes says in words what became of the way's calls.
func (w *way) outcomes() []string {
	t := w.tally()
	all := []string{fmt.Sprintf("%d answered", t.answered)}
	if t.refusedByAPI > 0 {
		all = append(all, fmt.Sprintf("%d refused by the API", t.refusedByAPI))
	}
	if t.refusedByUs > 0 {
		all = append(all, fmt.Sprintf("%d refused by us", t.refusedByUs))
	}
	if len(all) == 1 {
		all = append(all, "none refused")
	}
	return all
}

// key adds a mark and what it means.
func key(s *strings.Builder, x, y int, outcome byte, means string) {
	m := marks[outcome]
	if outcome == waiting {
		m.class, m.path = "w", "m-6 0h12"
	}
	fmt.Fprintf(s, `<path class="%s" d="M%d %d%s"/><text class="d" x="%d" y="%d">%s</text>`+"\n", m.class, x+6, y-5, m.path, x+20, y, means)
}

// In virtual time the three ways go the same way each time, on every machine.
func TestPictureShowsWhatHappens(t *testing.T) {
	var drawn string
	synctest.Test(t, func(t *testing.T) {
		d, _ := threeAPIs(t)
		if err := d.run(t.Context(), screen{out: io.Discard}); err != nil {
			t.Fatal(err)
		}
		drawn = draw(d)
	})
	for dec := xml.NewDecoder(strings.NewReader(drawn)); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("no browser shows it: %v\n%s", err, drawn)
		}
	}
	if *update {
		if err := os.WriteFile(picture, []byte(drawn), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, []byte(drawn)) {
		t.Errorf("%s is out of date, -update writes it anew:\n%s", picture, drawn)
	}
}
