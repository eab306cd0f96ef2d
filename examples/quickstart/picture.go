package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/plot"
	"github.com/dripfeed/dripfeed/examples/internal/virtual"
)

// The measures of a way's part of the picture, in pixels.
const (
	second  = 100                            // of time
	one     = 2                              // a call in the last second
	head    = 22                             // the way's name
	curve   = 2 * rate * one                 // the calls in the last second, up to all that come
	gap     = 10                             // between the curve and the rows
	rows    = calls                          // a row for each call
	between = head + curve + gap + rows + 16 // from one way to the next
)

// marks are the marks of what became of a call, which stand where it ends.
var marks = map[byte]struct{ class, path string }{
	answered:     {"a", "h0"},
	refusedByAPI: {"x", "m-2.2-2.2l4.4 4.4m0-4.4l-4.4 4.4"},
	refusedByUs:  {"u", "m-2 0h4"},
}

// picture runs the demo in virtual time, without a network, and draws what has happened: the
// same each time, on every machine.
func picture(s screen) (svg string, err error) {
	virtual.Run(func() {
		const url = "http://api.example.com/"
		var d *demo
		d, err = threeWays(rate, [3]string{url, url, url}, [3]http.RoundTripper{strictAPI(rate), strictAPI(rate), strictAPI(rate)})
		if err != nil {
			return
		}
		// Nothing from outside of virtual time can end it, and nothing has to.
		if err = d.run(context.Background(), s); err == nil {
			svg = draw(d)
		}
	})
	return svg, err
}

// save draws the picture into a file.
func save(file string, s screen) error {
	svg, err := picture(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(svg), 0o644); err != nil {
		return err
	}
	s.printf("\nThe file of -svg has a picture of this.\n")
	return nil
}

// draw returns the ways as a picture.
func draw(d *demo) string {
	const top = 46 // of the first way
	p := plot.New(fmt.Sprintf("%v calls a second, and the API allows %v", 2*d.rate, d.rate))
	bottom := top + len(d.ways)*between
	for at := range 5 {
		p.Text("d", plot.Left+at*second, bottom+6, "middle", fmt.Sprintf("%d s", at))
		for i := range d.ways {
			y := top + i*between + head
			p.Path("g", fmt.Sprintf("M%d %dV%d", plot.Left+at*second, y, y+curve+gap+rows+4))
		}
	}
	var says []string
	for i, w := range d.ways {
		says = append(says, w.draw(p, top+i*between, d.rate))
	}
	const column = plot.Left + 190
	key(p, plot.Left, bottom+34, marks[answered].class, marks[answered].path, "answered")
	key(p, plot.Left, bottom+56, "w", "m-6-4h12v8h-12", "waiting")
	key(p, plot.Left, bottom+78, "n", "m-6 0h12", "calls in the last second")
	key(p, column, bottom+34, marks[refusedByAPI].class, marks[refusedByAPI].path, "refused by the API")
	key(p, column, bottom+56, marks[refusedByUs].class, marks[refusedByUs].path, "refused by us, not sent")
	key(p, column, bottom+78, "l", "m-7 0h14", fmt.Sprintf("of them the API allows %v", d.rate))
	return p.SVG(bottom+94, strings.Join(says, " "))
}

// x returns the place of a time, which is rounded so that no rounding of a float64 shows.
func x(at time.Duration) float64 {
	return plot.Left + float64(at.Round(time.Millisecond).Milliseconds())*second/1000
}

// draw adds the way's part of the picture, and returns it in words.
func (w *way) draw(p *plot.Picture, top int, rate float64) string {
	t := w.tally()
	outcomes := []string{fmt.Sprintf("%d answered", t.answered)}
	if t.refusedByAPI > 0 {
		outcomes = append(outcomes, fmt.Sprintf("%d refused by the API", t.refusedByAPI))
	}
	if t.refusedByUs > 0 {
		outcomes = append(outcomes, fmt.Sprintf("%d refused by us", t.refusedByUs))
	}
	if len(outcomes) == 1 {
		outcomes = append(outcomes, "none refused")
	}
	says := strings.Join(outcomes, ", ")
	p.Text("h", plot.Left, top+10, "start", w.name)
	p.Text("d", plot.Right, top+10, "end", says)
	most := w.drawCurve(p, top+head+curve, rate)
	w.drawRows(p, top+head+curve+gap)
	return fmt.Sprintf("%s: %s, at most %d calls in a second.", w.name, says, most)
}

// drawCurve adds a curve of how many calls the way has sent in the last second, itself
// included, at each call. It returns the most.
func (w *way) drawCurve(p *plot.Picture, base int, rate float64) (most int) {
	var sent []time.Duration
	for i, outcome := range w.cells {
		if outcome == answered || outcome == refusedByAPI {
			sent = append(sent, w.ended[i]) // the API answers at once
		}
	}
	slices.Sort(sent)
	limit := plot.Number(float64(base) - rate*one)
	var line, above strings.Builder
	first, over := 0, ""
	for i, at := range sent {
		for at-sent[first] >= time.Second {
			first++
		}
		n := i + 1 - first
		most = max(most, n)
		point := fmt.Sprintf("%s %d", plot.Number(x(at)), base-n*one)
		line.WriteString(map[bool]string{true: "M", false: "L"}[i == 0] + point)
		if float64(n) >= rate && over == "" {
			fmt.Fprintf(&above, "M%s %s", plot.Number(x(at)), limit)
		}
		if float64(n) >= rate {
			over = plot.Number(x(at))
			above.WriteString("L" + point)
		}
	}
	if float64(most) > rate {
		p.Path("o", above.String()+"L"+over+" "+limit+"Z")
	}
	p.Path("l", fmt.Sprintf("M%d %sH%d", plot.Left, limit, plot.Right))
	p.Path("n", line.String())
	return most
}

// drawRows adds a row for each call, from when it was made to its end.
func (w *way) drawRows(p *plot.Picture, top int) {
	paths := map[string]string{}
	for i, outcome := range w.cells {
		if from, to := plot.Number(x(w.began[i])), plot.Number(x(w.ended[i])); from != to {
			paths["w"] += fmt.Sprintf("M%s %dH%sv1H%[1]s", from, top+i, to)
		}
		m := marks[outcome]
		paths[m.class] += fmt.Sprintf("M%s %d.5%s", plot.Number(x(w.ended[i])), top+i, m.path)
	}
	for _, class := range []string{"w", "a", "x", "u"} {
		p.Path(class, paths[class])
	}
}

// key adds a mark and what it means.
func key(p *plot.Picture, x, y int, class, path, means string) {
	p.Path(class, fmt.Sprintf("M%d %d%s", x+7, y-5, path))
	p.Text("d", x+22, y, "start", means)
}
