package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

var update = flag.Bool("update", false, "write the picture anew")

// kept is the file with the picture, which the README shows. To draw it anew:
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
	drawn := []byte(draw(d))
	for dec := xml.NewDecoder(bytes.NewReader(drawn)); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("no browser shows it: %v\n%s", err, drawn)
		}
	}
	if *update {
		if err := os.WriteFile(kept, drawn, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, drawn) {
		t.Errorf("%s is out of date, -update writes it anew:\n%s", kept, drawn)
	}
	if len(drawn) > 25_000 {
		t.Errorf("it has %d bytes", len(drawn))
	}
}

// The measures of a way's part of the picture, in pixels.
const (
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

// draw returns the ways as a picture.
func draw(d *demo) string {
	const top = 46 // of the first way
	p := newDrawing(fmt.Sprintf("%v calls a second, and the API allows %v", 2*d.rate, d.rate))
	bottom := top + len(d.ways)*between
	for at := range 5 {
		p.text("d", left+at*second, bottom+6, "middle", fmt.Sprintf("%d s", at))
		for i := range d.ways {
			y := top + i*between + head
			p.path("g", fmt.Sprintf("M%d %dV%d", left+at*second, y, y+curve+gap+rows+4))
		}
	}
	var says []string
	for i, w := range d.ways {
		says = append(says, w.draw(p, top+i*between, d.rate))
	}
	const column = left + 190
	key(p, left, bottom+34, marks[answered].class, marks[answered].path, "answered")
	key(p, left, bottom+56, "w", "m-6-4h12v8h-12", "waiting")
	key(p, left, bottom+78, "n", "m-6 0h12", "calls in the last second")
	key(p, column, bottom+34, marks[refusedByAPI].class, marks[refusedByAPI].path, "refused by the API")
	key(p, column, bottom+56, marks[refusedByUs].class, marks[refusedByUs].path, "refused by us, not sent")
	key(p, column, bottom+78, "l", "m-7 0h14", fmt.Sprintf("of them the API allows %v", d.rate))
	return p.svg(bottom+94, strings.Join(says, " "))
}

// x returns the place of a time, which is rounded so that no rounding of a float64 shows.
func x(at time.Duration) float64 {
	return left + float64(at.Round(time.Millisecond).Milliseconds())*second/1000
}

// draw adds the way's part of the picture, and returns it in words.
func (w *way) draw(p *drawing, top int, rate float64) string {
	outcomes := []string{fmt.Sprintf("%d answered", w.count(answered))}
	if n := w.count(refusedByAPI); n > 0 {
		outcomes = append(outcomes, fmt.Sprintf("%d refused by the API", n))
	}
	if n := w.count(refusedByUs); n > 0 {
		outcomes = append(outcomes, fmt.Sprintf("%d refused by us", n))
	}
	if len(outcomes) == 1 {
		outcomes = append(outcomes, "none refused")
	}
	says := strings.Join(outcomes, ", ")
	p.text("h", left, top+10, "start", w.name)
	p.text("d", right, top+10, "end", says)
	most := w.drawCurve(p, top+head+curve, rate)
	w.drawRows(p, top+head+curve+gap)
	return fmt.Sprintf("%s: %s, at most %d calls in a second.", w.name, says, most)
}

// drawCurve adds a curve of how many calls the way has sent in the last second, itself
// included, at each call. It returns the most.
func (w *way) drawCurve(p *drawing, base int, rate float64) (most int) {
	var sent []time.Duration
	for i, outcome := range w.cells {
		if outcome == answered || outcome == refusedByAPI {
			sent = append(sent, w.ended[i]) // the API answers at once
		}
	}
	slices.Sort(sent)
	limit := number(float64(base) - rate*one)
	var line, above strings.Builder
	first, over := 0, ""
	for i, at := range sent {
		for at-sent[first] >= time.Second {
			first++
		}
		n := i + 1 - first
		most = max(most, n)
		point := fmt.Sprintf("%s %d", number(x(at)), base-n*one)
		line.WriteString(map[bool]string{true: "M", false: "L"}[i == 0] + point)
		if float64(n) >= rate && over == "" {
			fmt.Fprintf(&above, "M%s %s", number(x(at)), limit)
		}
		if float64(n) >= rate {
			over = number(x(at))
			above.WriteString("L" + point)
		}
	}
	if float64(most) > rate {
		p.path("o", above.String()+"L"+over+" "+limit+"Z")
	}
	p.path("l", fmt.Sprintf("M%d %sH%d", left, limit, right))
	p.path("n", line.String())
	return most
}

// drawRows adds a row for each call, from when it was made to its end.
func (w *way) drawRows(p *drawing, top int) {
	paths := map[string]string{}
	for i, outcome := range w.cells {
		if from, to := number(x(w.began[i])), number(x(w.ended[i])); from != to {
			paths["w"] += fmt.Sprintf("M%s %dH%sv1H%[1]s", from, top+i, to)
		}
		m := marks[outcome]
		paths[m.class] += fmt.Sprintf("M%s %d.5%s", number(x(w.ended[i])), top+i, m.path)
	}
	for _, class := range []string{"w", "a", "x", "u"} {
		p.path(class, paths[class])
	}
}

// key adds a mark and what it means.
func key(p *drawing, x, y int, class, path, means string) {
	p.path(class, fmt.Sprintf("M%d %d%s", x+7, y-5, path))
	p.text("d", x+22, y, "start", means)
}

// The measures of the picture, in its own pixels. On a screen of 360 pixels its text is still
// 10 pixels high.
const (
	width = 440
	left  = 20
	right = width - 20
)

// style has a class for each kind of mark. The picture brings its own background: it follows the
// reader's system, which the page around it may not do. It names no font that a machine may lack.
const style = `text{font:14px system-ui,sans-serif;fill:#16202a}.h{font-weight:600}.d{fill:#56616d}` +
	`path{fill:none;stroke-linecap:round;stroke-linejoin:round}.b{fill:#fff}.g{stroke:#dfe4ea}` +
	`.n{stroke:#3d4956;stroke-width:1.6}.l{stroke:#b3261e;stroke-dasharray:5 4;stroke-linecap:butt}.o{fill:#b3261e;opacity:.22}` +
	`.a{stroke:#0f7391;stroke-width:4.4}.w{fill:#0f7391;opacity:.2}.x{stroke:#b3261e;stroke-width:1.5}.u{stroke:#8a5a00;stroke-width:1.8}` +
	`@media(prefers-color-scheme:dark){text{fill:#e6ebf0}.d{fill:#9aa7b4}.b{fill:#0d1117}.g{stroke:#2a343e}` +
	`.n{stroke:#c3ccd5}.l,.x{stroke:#ff8a80}.o{fill:#ff8a80}.a{stroke:#3fb3d3}.w{fill:#3fb3d3;opacity:.3}.u{stroke:#f2c14e}}`

// drawing is a picture that grows from its top to its bottom.
type drawing struct {
	title string
	body  strings.Builder
}

// newDrawing returns a picture with only a title.
func newDrawing(title string) *drawing {
	p := &drawing{title: title}
	p.text("h", left, 26, "start", title)
	return p
}

// text adds a text. Its anchor, which is start, middle or end, stands at x.
func (p *drawing) text(class string, x, y int, anchor, text string) {
	fmt.Fprintf(&p.body, `<text class="%s" x="%d" y="%d"`, class, x, y)
	if anchor != "start" {
		fmt.Fprintf(&p.body, ` text-anchor="%s"`, anchor)
	}
	fmt.Fprintf(&p.body, ">%s</text>\n", html.EscapeString(text))
}

// path adds a path, and nothing if it is empty.
func (p *drawing) path(class, path string) {
	if path != "" {
		fmt.Fprintf(&p.body, "<path class=\"%s\" d=\"%s\"/>\n", class, path)
	}
}

// svg returns the picture with this height, and with a description for those who do not see it.
func (p *drawing) svg(height int, description string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%d" role="img" aria-labelledby="t d">`, width, height) +
		fmt.Sprintf("\n<title id=\"t\">%s</title>\n<desc id=\"d\">%s</desc>\n", html.EscapeString(p.title), html.EscapeString(description)) +
		fmt.Sprintf("<style>%s</style>\n<rect class=\"b\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", style, width, height) +
		p.body.String() + "</svg>\n"
}

// number returns a coordinate, to a tenth of a pixel.
func number(x float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0")
}
