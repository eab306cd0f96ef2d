package main

import (
	"math"
	"time"
)

// histogram counts durations, each to 1 %. Its size does not depend on their number.
type histogram struct {
	counts [2300]int // up to 2.4 hours; longer ones count as that
	n      int
}

// The bounds of the classes are powers of step, in µs.
var step = math.Log(1.01)

func (h *histogram) add(d time.Duration) {
	class := 0
	if us := float64(d) / float64(time.Microsecond); us > 1 {
		class = min(int(math.Log(us)/step), len(h.counts)-1)
	}
	h.counts[class]++
	h.n++
}

// quantile returns the smallest duration that a share q of all do not exceed; 0 if there are
// none.
func (h *histogram) quantile(q float64) time.Duration {
	rest := int(math.Ceil(q * float64(h.n)))
	for class, n := range h.counts {
		if rest -= n; rest <= 0 && n > 0 {
			return time.Duration(math.Exp((float64(class)+0.5)*step) * float64(time.Microsecond))
		}
	}
	return 0
}
