package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// By how much a row may be worse, beyond the spread.
const (
	slowerAllowed = 0.05 // of the other tree's median
	largerAllowed = 8    // bytes
)

// fewestRounds leaves three values in each half of a tree's turns, so that one wild
// value does not widen the spread.
const fewestRounds = 6

// A pair holds the measurements of both trees.
type pair struct{ this, other cell }

// spread returns by how much two runs of one tree may differ.
func (p pair) spread() float64 { return max(p.this.spread(), p.other.spread()) }

// above reports whether this tree's median exceeds the other's by more than the
// spread and the allowed part.
func (p pair) above(allowed float64) bool {
	return p.this.median()-p.other.median() > p.spread()+allowed
}

// swapped returns the pair as the other tree sees it.
func (p pair) swapped() pair { return pair{p.other, p.this} }

// spread returns the distance of the quartiles. It is the largest difference between the medians of
// two halves of the values, over all ways to halve them. Two runs with half the rounds could differ
// by as much.
func (c *cell) spread() float64 {
	v := slices.Sorted(slices.Values(c.values))
	half := len(v) / 2
	return median(v[len(v)-half:]) - median(v[:half])
}

// A row is one metric of one contender in both trees.
type row struct {
	name   string
	metric metric
	values pair
	wrong  float64 // largest share of wrong decisions in a measurement
	// counted is true if the measurements have counted their allocations.
	counted        bool
	objects, bytes pair
}

// add records a measurement of this tree, or of the other.
func (r *row) add(this bool, value float64, a *allocated) {
	side := func(p *pair) *cell {
		if this {
			return &p.this
		}
		return &p.other
	}
	note := func(p *pair, v float64) { side(p).values = append(side(p).values, v) }
	note(&r.values, value)
	if a != nil {
		r.counted = true
		note(&r.objects, a.Objects)
		note(&r.bytes, a.Bytes)
	}
}

// verdict returns how this tree differs by more than chance, and whether it is
// worse.
func (r *row) verdict() (text string, worse bool) {
	allowed := func(p pair) float64 { return slowerAllowed * math.Abs(p.other.median()) }
	more, less := "slower", "quicker"
	if r.metric.size {
		allowed = func(pair) float64 { return largerAllowed }
		more, less = "larger", "smaller"
	}
	back := r.values.swapped()
	switch {
	case r.values.above(allowed(r.values)):
		return more, true
	case r.counted && r.bytes.above(largerAllowed):
		return "allocates more", true
	case back.above(allowed(back)):
		return less, false
	}
	return "", false
}

// writeRows prints the rows as a Markdown table and returns how many are worse.
func writeRows(w io.Writer, rows []*row) (worse int) {
	writeHead(w, []string{subject, "this tree", "the other", "ratio", "spread",
		"allocations, this / other", "bytes, this / other", "verdict"})
	wrong := 0.0
	for _, r := range rows {
		digits, other := r.metric.digits, r.values.other.median()
		cells := []string{r.name, number(r.values.this.median(), digits), number(other, digits), "–", "–", "–", "–"}
		if other > 0 {
			cells[3] = fmt.Sprintf("%.3f", r.values.this.median()/other)
			cells[4] = fmt.Sprintf("%.1f %%", 100*r.values.spread()/other)
		}
		if r.counted {
			cells[5] = number(r.objects.this.median(), 1) + " / " + number(r.objects.other.median(), 1)
			cells[6] = number(r.bytes.this.median(), 0) + " / " + number(r.bytes.other.median(), 0)
		}
		if r.wrong > 0 {
			cells[0] += " \\*"
			wrong = max(wrong, r.wrong)
		}
		text, bad := r.verdict()
		if bad {
			worse++
		}
		writeRow(w, append(cells, text))
	}
	writeWrong(w, wrong)
	return worse
}

func number(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }
