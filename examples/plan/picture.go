package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/plot"
)

// The measures of a part of the picture, in pixels. Each limit has a part, and the last one is
// of the callers that wait.
const (
	head    = 22 // its name
	curve   = 40 // what is full is so high
	strip   = 7  // when it bounds the calls
	between = head + curve + strip + 18
	wide    = plot.Right - plot.Left
)

// draw returns a picture of the result.
func (r *result) draw() string {
	const top = 46
	bottom := top + (len(r.limits)+1)*between
	p := plot.New(fmt.Sprintf("%s in %s", count(r.calls, "call"), short(r.Took)))
	took := max(r.Took, time.Millisecond)
	every := step(took)
	for at := time.Duration(0); at <= took; at += every {
		x := plot.Left + int(wide*float64(at)/float64(took))
		for y := top + head; y < bottom; y += between {
			p.Path("g", fmt.Sprintf("M%d %dV%d", x, y-2, y+curve+strip))
		}
		if x <= plot.Right-14 { // else it would not fit
			p.Text("d", x, bottom+4, "middle", tick(at))
		}
	}
	var says strings.Builder
	y := top
	for _, l := range r.limits {
		text := fmt.Sprintf("used %s, binds %s", percent(l.used(r.calls, r.Took)), percent(r.bound(l.Name)))
		if !l.window {
			text = "spaced evenly, " + text
		}
		fmt.Fprintf(&says, "%s: %s. ", l.Name, text)
		title(p, y, l.Name, text)
		p.Path("l", fmt.Sprintf("M%d %dH%d", plot.Left, y+head, plot.Right))
		p.Path("n", steps(y+head+curve, r.within(l), l.n))
		p.Path("k", r.binding(l.Name, y+head+curve+strip-1))
		y += between
	}
	all := r.workers * r.callers
	text := fmt.Sprintf("p50 %s, longest %s", short(r.Wait(0.5)), short(r.Wait(1)))
	fmt.Fprintf(&says, "Waits: %s.", text)
	title(p, y, fmt.Sprintf("waiting, of %s", count(all, "caller")), text)
	var waiting []float64
	for _, l := range r.looks {
		waiting = append(waiting, float64(l.waiting))
	}
	p.Path("w", steps(y+head+curve, waiting, float64(all))+fmt.Sprintf("V%dH%dZ", y+head+curve, plot.Left))
	p.Path("k", r.binding(byCallers, y+head+curve+strip-1))

	const column = plot.Left + 222
	key(p, plot.Left, bottom+32, "n", "m-7 0h14", "calls in the limit's time")
	key(p, plot.Left, bottom+54, "k", "m-7 0h14", "this bounds the calls")
	key(p, column, bottom+32, "l", "m-7 0h14", "what it allows")
	key(p, column, bottom+54, "w", "m-7-4h14v8h-14", "callers that wait")
	return p.SVG(bottom+70, says.String())
}

func title(p *plot.Picture, y int, name, text string) {
	p.Text("h", plot.Left, y+10, "start", name)
	p.Text("d", plot.Right, y+10, "end", text)
}

func key(p *plot.Picture, x, y int, class, path, means string) {
	p.Path(class, fmt.Sprintf("M%d %d%s", x+7, y-5, path))
	p.Text("d", x+22, y, "start", means)
}

// within returns for each look the most calls in the limit's time since the look before.
func (r *result) within(l limit) []float64 {
	most := make([]float64, len(r.looks))
	gone := 0
	for i := range most {
		at := r.at(i)
		most[i] = float64(r.by(at) - r.by(at-l.per))
		for ; gone < r.by(at); gone++ {
			most[i] = max(most[i], float64(gone+1-r.by(r.left[gone]-l.per)))
		}
	}
	return most
}

// steps returns a curve of values, of which full is the height of a curve.
func steps(base int, values []float64, full float64) string {
	var s strings.Builder
	last := ""
	for i, v := range values {
		y := plot.Number(float64(base) - curve*v/full)
		switch {
		case i == 0:
			fmt.Fprintf(&s, "M%d %s", plot.Left, y)
		case y != last:
			fmt.Fprintf(&s, "H%sV%s", place(i, len(values)), y)
		}
		last = y
	}
	fmt.Fprintf(&s, "H%d", plot.Right)
	return s.String()
}

// binding returns lines where this bounds the calls.
func (r *result) binding(what string, y int) string {
	var s strings.Builder
	for i := 0; i < len(r.looks); i++ {
		from := i
		for i < len(r.looks) && r.looks[i].bound == what {
			i++
		}
		if i > from {
			fmt.Fprintf(&s, "M%s %dH%s", place(from, len(r.looks)), y, place(i, len(r.looks)))
		}
	}
	return s.String()
}

func place(i, of int) string { return plot.Number(plot.Left + wide*float64(i)/float64(of)) }

// step returns the time between two times that the picture names: six of them at most.
func step(took time.Duration) time.Duration {
	for unit := time.Millisecond; ; unit *= 10 {
		if unit >= 10*time.Second {
			break
		}
		for _, n := range []time.Duration{1, 2, 5} {
			if took <= 6*n*unit {
				return n * unit
			}
		}
	}
	for _, d := range []time.Duration{
		10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	} {
		if took <= 6*d {
			return d
		}
	}
	days := took/(6*24*time.Hour) + 1
	return days * 24 * time.Hour
}

// tick returns a time as short as it can be said.
func tick(at time.Duration) string {
	switch {
	case at == 0:
		return "0"
	case at%(24*time.Hour) == 0:
		return fmt.Sprintf("%d d", at/(24*time.Hour))
	case at%time.Hour == 0:
		return fmt.Sprintf("%d h", at/time.Hour)
	case at >= time.Hour:
		return fmt.Sprintf("%d h %d", at/time.Hour, at%time.Hour/time.Minute)
	case at%time.Minute == 0:
		return fmt.Sprintf("%d min", at/time.Minute)
	case at >= time.Second:
		return fmt.Sprintf("%g s", at.Seconds())
	default:
		return fmt.Sprintf("%d ms", at.Milliseconds())
	}
}
