package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A cell holds the values of a contender in one column.
type cell struct {
	values []float64
	wrong  float64
}

func (c *cell) median() float64 { return median(slices.Sorted(slices.Values(c.values))) }

// median returns the median of sorted values.
func median(v []float64) float64 {
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// A column is one metric of one scenario, with a cell for each measured
// contender.
type column struct {
	section string
	metric  metric
	list    []contender // the rows
	cells   map[string]*cell
}

func (c *column) add(contender string, value, wrong float64) {
	if c.cells[contender] == nil {
		c.cells[contender] = &cell{}
	}
	c.cells[contender].values = append(c.cells[contender].values, value)
	c.cells[contender].wrong = max(c.cells[contender].wrong, wrong)
}

// writeTables prints a Markdown table per section, in the order of the columns, and then a table
// that compares the subject with the rest.
func writeTables(w io.Writer, columns []*column) {
	for len(columns) > 0 {
		section := columns[0].section
		end := slices.IndexFunc(columns, func(c *column) bool { return c.section != section })
		if end < 0 {
			end = len(columns)
		}
		writeSection(w, columns[:end])
		columns = columns[end:]
	}
}

func writeSection(w io.Writer, columns []*column) {
	head := []string{columns[0].section}
	for _, c := range columns {
		head = append(head, c.metric.name)
	}
	writeHead(w, head)
	wrong := 0.0
	list := columns[0].list
	for _, who := range list {
		row, any := []string{who.name}, false
		for _, c := range columns {
			text := "–"
			if cell := c.cells[who.name]; cell != nil {
				any = true
				text = c.text(cell, c.cells[list[0].name])
				wrong = max(wrong, cell.wrong)
			}
			row = append(row, text)
		}
		if any {
			writeRow(w, row)
		}
	}
	writeWrong(w, wrong)
	fmt.Fprintln(w)
}

// writeWrong explains the asterisks, if there are any.
func writeWrong(w io.Writer, wrong float64) {
	if wrong > 0 {
		fmt.Fprintf(w, "\n\\* some of these decisions went wrong, at most %.2g %%\n", wrong*100)
	}
}

// text returns the median and, where both are known, its ratio to the first
// contender's.
func (c *column) text(of, first *cell) string {
	text := strconv.FormatFloat(of.median(), 'f', c.metric.digits, 64)
	if c.metric.ratio && first != nil && first.median() > 0 {
		text += fmt.Sprintf(" (%.2f×)", of.median()/first.median())
	}
	if of.wrong > 0 {
		text += " \\*"
	}
	return text
}

// writeSubject compares the subject with the first contender and with the best of its peers, if it
// took part.
func writeSubject(w io.Writer, columns []*column) {
	var rows [][]string
	for _, c := range columns {
		own := c.cells[subject]
		if own == nil {
			continue
		}
		row := []string{c.section + ": " + c.metric.name, strconv.FormatFloat(own.median(), 'f', c.metric.digits, 64), "–", "–", "–"}
		if first := c.cells[c.list[0].name]; first != nil && first.median() > 0 {
			row[2] = fmt.Sprintf("%.2f×", own.median()/first.median())
		}
		var best *cell
		for _, who := range c.list {
			if cell := c.cells[who.name]; who.peer && cell != nil && (best == nil || cell.median() < best.median()) {
				best, row[3] = cell, who.name
			}
		}
		if best != nil && best.median() > 0 {
			row[4] = fmt.Sprintf("%.2f×", own.median()/best.median())
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return
	}
	writeHead(w, []string{subject, "median", "to the first row", "best peer", "to the best peer"})
	for _, row := range rows {
		writeRow(w, row)
	}
}

func writeHead(w io.Writer, cells []string) {
	writeRow(w, cells)
	fmt.Fprintln(w, "|---"+strings.Repeat("|---:", len(cells)-1)+"|")
}

func writeRow(w io.Writer, cells []string) {
	fmt.Fprintln(w, "| "+strings.Join(cells, " | ")+" |")
}
