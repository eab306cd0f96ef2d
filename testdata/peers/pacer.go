package main

import (
	"math"
	"slices"
	"time"
)

const (
	// perWindow is how many bursts a pacer begins in a window. dripfeed remembers a
	// window in as many parts, so that each burst is in a part of its own.
	perWindow = 64
	// fill is how many bursts fill a window, and a few more.
	fill = perWindow + 6
)

// burstOf returns how many calls of n per window are in a burst. They allow for a burst that is in
// the window only in part.
func burstOf(n int) int { return n / (perWindow + 2) }

// A pacer calls a limit in bursts, evenly apart, so that a window of n calls is always full and
// none is ever refused. A limit that remembers calls then remembers as many as it ever
// does, and forgets one for each new one.
type pacer struct {
	turns      func(goroutine, n int)
	goroutines int
	calls      int           // of a burst
	apart      time.Duration // from the beginning of a burst to that of the next
	// spin is how long before a burst the pacer stops sleeping, because sleeps end late.
	spin time.Duration

	next    time.Time // when the next burst may begin
	bursts  []float64 // the time of a call in each burst, in ns
	outcome tally
}

func newPacer(n int, window time.Duration, goroutines int, take func() bool) *pacer {
	p := &pacer{
		goroutines: goroutines, calls: burstOf(n),
		apart: window/perWindow + window/10_000, // later than what would still be in the part
		spin:  2 * time.Millisecond,
	}
	p.turns = func(_, n int) {
		wrong := 0
		for range n {
			if !take() {
				wrong++
			}
		}
		p.outcome.add(n, wrong)
	}
	return p
}

// burst begins immediately if it is late, and the next is as much later.
func (p *pacer) burst() {
	for {
		left := time.Until(p.next)
		if left <= 0 {
			break
		}
		if left > p.spin {
			time.Sleep(left - p.spin)
		}
	}
	began := time.Now()
	p.next = began.Add(p.apart)
	fan(p.goroutines, p.calls, p.turns)
	p.bursts = append(p.bursts, float64(time.Since(began))/float64(p.calls))
}

// fill makes the window full.
func (p *pacer) fill() {
	for range fill {
		p.burst()
	}
}

// run measures bursts for at least this long. It returns the median burst's time of a
// call, because a burst is so short that few meet a disturbance, and the number of calls.
func (p *pacer) run(least time.Duration) (ns float64, calls int, a allocated) {
	p.bursts = p.bursts[:0]
	count := max(9, int(math.Ceil(float64(least)/float64(p.apart))))
	p.bursts = slices.Grow(p.bursts, count)
	a = garbage(count*p.calls, func() {
		for range count {
			p.burst()
		}
	})
	return median(slices.Sorted(slices.Values(p.bursts))), count * p.calls, a
}
