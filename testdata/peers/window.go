package main

import (
	"fmt"
	"runtime"
	"time"
)

// windowers lists the contenders with n calls per window in memory. Ratios refer to the
// first, which shows what dripfeed's windows cost more than its leaky limits.
func windowers() []contender {
	return []contender{
		dripfeedWindow(", two leaky limits", twoLeaky),
		dripfeedWindow("", oneWindow),
		dripfeedWindow(", and a leaky limit", windowAndLeaky),
		exactLogs(),
		failsafegoBursty(),
		goLimiterWindow(),
	}
}

// windowScenarios lists the scenarios of windows in memory, in the order of the tables.
func windowScenarios(o options) []scenario {
	return []scenario{
		fullWindow(o, o.Window/5),
		fullWindow(o, o.Window),
		spentWindow(o, o.Window),
		windowSize(o.Window / 5),
		windowSize(o.Window),
	}
}

const (
	// ever is a window that does not end during a measurement.
	ever = 1000 * time.Hour
	// shortWindow is so short that it is full soon, and so long that few bursts are late.
	shortWindow = 64 * time.Millisecond
)

const windowSection = "A decision by a window, ns"

// fullWindow measures an admitted decision while as many calls are in the window as are
// allowed.
func fullWindow(o options, n int) scenario {
	return scenario{
		section: windowSection,
		name:    fmt.Sprintf("window of %d, full", n),
		metrics: []metric{{name: fmt.Sprintf("admitted, n = %d", n), digits: 1, ratio: true}},
		offered: func(c contender) bool { return c.window != nil },
		measure: func(c contender) (sample, error) {
			take, err := c.window(n, shortWindow)
			if err != nil {
				return sample{}, err
			}
			p := newPacer(n, shortWindow, 1, take)
			p.fill()
			ns, _, allocated := p.run(o.Benchtime)
			wrong, err := p.outcome.share()
			return sample{[]float64{ns}, wrong, &allocated}, err
		},
	}
}

// spentWindow measures a refused decision, after all calls of the window have gone.
func spentWindow(o options, n int) scenario {
	return scenario{
		section: windowSection,
		name:    fmt.Sprintf("window of %d, spent", n),
		metrics: []metric{{name: fmt.Sprintf("refused, n = %d", n), digits: 1, ratio: true}},
		offered: func(c contender) bool { return c.window != nil },
		measure: func(c contender) (sample, error) {
			take, err := c.window(n, ever)
			if err == nil {
				err = holdsTo(n, take)
			}
			if err != nil {
				return sample{}, err
			}
			var outcome tally
			ns, allocated := timed(o.Benchtime, manyTurns, func(n int) {
				wrong := 0
				for range n {
					if take() {
						wrong++
					}
				}
				outcome.add(n, wrong)
			})
			wrong, err := outcome.share()
			return sample{[]float64{ns}, wrong, &allocated}, err
		},
	}
}

// holdsTo returns an error unless take admits n calls, and no more.
func holdsTo(n int, take func() bool) error {
	if err := all(n, true, take); err != nil {
		return err
	}
	if take() {
		return fmt.Errorf("more than %d calls are admitted", n)
	}
	return nil
}

// windowSize measures the memory of a limit while as many calls are in its window as are
// allowed.
func windowSize(n int) scenario {
	return scenario{
		section: "A window in memory, bytes",
		name:    fmt.Sprintf("bytes of a window of %d", n),
		metrics: []metric{{name: fmt.Sprintf("full, n = %d", n), digits: 0, ratio: true, size: true}},
		offered: func(c contender) bool { return c.window != nil && c.alone },
		measure: func(c contender) (sample, error) {
			const window = 8 * shortWindow // a burst is one of all limits
			limits := make([]func() bool, 100)
			before := liveHeap()
			for i := range limits {
				take, err := c.window(n, window)
				if err != nil {
					return sample{}, err
				}
				limits[i] = take
			}
			p := newPacer(n, window, 1, func() bool {
				admitted := true
				for _, take := range limits {
					admitted = take() && admitted
				}
				return admitted
			})
			p.fill()
			wrong, err := p.outcome.share()
			p.bursts = nil
			bytes := float64(int64(liveHeap())-int64(before)) / float64(len(limits))
			runtime.KeepAlive(limits)
			return sample{Values: []float64{bytes}, Wrong: wrong}, err
		},
	}
}
