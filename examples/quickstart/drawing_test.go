package main

import (
	"fmt"
	"html"
	"strconv"
	"strings"
)

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
