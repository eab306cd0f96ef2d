package main

import "fmt"

// decision measures one call on one limit that admits or refuses all of them.
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
				take() // the one unit that there is
			}
			if err := all(1000, admitted, take); err != nil {
				return sample{}, err
			}
			var outcome tally
			ns, _ := timed(o.Benchtime, manyTurns, func(n int) {
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
			return sample{[]float64{ns}, wrong}, err
		},
	}
}
