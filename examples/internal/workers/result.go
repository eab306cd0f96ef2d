package workers

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Result counts the calls of one way by their results.
type Result struct {
	Way               string
	Answered, Refused int    // calls, by the API
	Said              string // the first error that a worker wrote

	fleet *Fleet
	began time.Time
	took  time.Duration
	trips int64
	by    []float64   // calls of each worker that were answered
	waits map[int]int // how many of them waited for step^key µs
}

const step = 1.02

// add adds a call that was answered.
func (r *Result) add(worker int, wait time.Duration, trips int64) {
	r.Answered++
	r.by[worker]++
	r.trips += trips
	r.waits[int(math.Log(max(1, float64(wait.Microseconds())))/math.Log(step))]++
}

// look returns the result so far.
func (r *run) look() *Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	so := r.result
	so.by, so.waits = slices.Clone(so.by), maps.Clone(so.waits)
	so.took, so.Refused = time.Since(so.began), r.api.Report().Refused
	return &so
}

// Used is the share of the quota that was used.
func (r *Result) Used() float64 {
	return float64(r.Answered) / (r.fleet.Burst + r.fleet.Rate*r.took.Seconds())
}

// wait returns how long a share q of the calls waited at most, to two percent.
func (r *Result) wait(q float64) float64 {
	rest := int(math.Ceil(q * float64(r.Answered)))
	for _, class := range slices.Sorted(maps.Keys(r.waits)) {
		if rest -= r.waits[class]; rest <= 0 {
			return math.Pow(step, float64(class)+0.5) / 1e6
		}
	}
	return 0
}

// Jain is Jain's index of fairness: 1 if all workers made as many calls, 1/n if one made all.
func (r *Result) Jain() float64 {
	sum, squares := 0., 0.
	for _, n := range r.by {
		sum += n
		squares += n * n
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(r.by)) * squares)
}

// table returns the lines of a table of results, in less than 60 columns.
func table(results []*Result) []string {
	lines := []string{
		"       quota answered refused Jain     wait, s  reqs",
		"           %                         p50   p99",
	}
	for _, r := range results {
		trips := "-"
		if r.trips > 0 {
			trips = fmt.Sprintf("%.2f", float64(r.trips)/float64(max(1, r.Answered+r.Refused)))
		}
		lines = append(lines, fmt.Sprintf("%-6s %5.1f %8d %7d %4.2f %5.2f %5.2f %5s",
			r.Way, 100*r.Used(), r.Answered, r.Refused, r.Jain(), r.wait(0.5), r.wait(0.99), trips))
	}
	return lines
}

func (r *Result) line() string {
	return fmt.Sprintf("%3.0f s  %-6s %5.1f %% used, %d answered, %d refused", r.took.Seconds(), r.Way, 100*r.Used(), r.Answered, r.Refused)
}
