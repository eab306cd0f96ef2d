package main

import (
	"fmt"
	"runtime"
)

// decision measures a call on one limit that admits all calls or refuses all.
func decision(o options, admitted bool, goroutines int) scenario {
	verb, build := "refused", func(c contender) func() (func() bool, error) { return c.refuse }
	if admitted {
		verb, build = "admitted", func(c contender) func() (func() bool, error) { return c.admit }
	}
	return scenario{
		section: "A decision, ns",
		name:    fmt.Sprintf("%s, %d goroutines", verb, goroutines),
		metrics: []metric{{name: fmt.Sprintf("%s, %d", verb, goroutines), digits: 1, ratio: true}},
		offered: func(c contender) bool { return build(c) != nil },
		measure: func(c contender) (sample, error) {
			take, err := build(c)()
			if err != nil {
				return sample{}, err
			}
			if !admitted {
				take() // takes the only unit
			}
			if err := all(1000, admitted, take); err != nil {
				return sample{}, err
			}
			var outcome tally
			ns, allocated := timed(o.Benchtime, manyTurns, func(n int) {
				fan(goroutines, n, func(_, n int) {
					wrong := 0
					for range n {
						if take() != admitted {
							wrong++
						}
					}
					outcome.add(n, wrong)
				})
			})
			wrong, err := outcome.share()
			return sample{[]float64{ns}, wrong, &allocated}, err
		},
	}
}

// limitSize measures the memory of a limit that has admitted a call.
func limitSize() scenario {
	return scenario{
		section: "A limit in memory, bytes",
		name:    "bytes per limit",
		metrics: []metric{{name: "each", digits: 0, ratio: true, size: true}},
		offered: func(c contender) bool { return c.admit != nil && c.alone },
		measure: func(c contender) (sample, error) {
			limits := make([]func() bool, 10_000)
			before := liveHeap()
			for i := range limits {
				take, err := c.admit()
				if err != nil {
					return sample{}, err
				}
				if !take() {
					return sample{}, fmt.Errorf("limit %d refuses", i+1)
				}
				limits[i] = take
			}
			bytes := float64(int64(liveHeap())-int64(before)) / float64(len(limits))
			runtime.KeepAlive(limits)
			return sample{Values: []float64{bytes}}, nil
		},
	}
}
