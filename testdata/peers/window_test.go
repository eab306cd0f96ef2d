package main

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Bursts keep the window full, and none is refused.
func TestWindow_BurstsKeepItFull(t *testing.T) {
	const n, window = 1000, time.Second
	synctest.Test(t, func(t *testing.T) {
		limit := exactLog{n: n, window: window}
		fewest := n
		p := newPacer(n, window, 1, func() bool {
			admitted := limit.take()
			fewest = min(fewest, len(limit.times))
			return admitted
		})
		p.spin = 0 // this time goes on in sleeps only
		p.fill()
		fewest = n
		began := time.Now()
		_, calls, _ := p.run(2 * window)
		if wrong, err := p.outcome.share(); wrong != 0 || err != nil {
			t.Errorf("the limit refuses %v of the calls, %v", wrong, err)
		}
		if fewest < 94*n/100 {
			t.Errorf("there were only %d calls in a window of %d", fewest, n)
		}
		if took := time.Since(began); calls < 18*n/10 || took < 2*window-window/perWindow {
			t.Errorf("%d calls in %v", calls, took)
		}
	})
}

// A burst that is late delays the bursts after it.
func TestWindow_LateBurstDelaysTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := true
		var took []time.Duration
		last := time.Now()
		p := newPacer(perWindow+2, time.Second, 1, func() bool {
			took = append(took, time.Since(last))
			last = time.Now()
			if slow {
				slow = false
				time.Sleep(time.Minute)
			}
			return true
		})
		p.spin = 0
		for range 3 {
			p.burst()
		}
		if took[1] != time.Minute || took[2] != p.apart {
			t.Errorf("bursts begin after %v, want one that is late, and one %v later", took, p.apart)
		}
	})
}

// Each contender admits as many calls as its limit.
func TestWindow_EachContenderKeepsItsLimit(t *testing.T) {
	for _, c := range windowers() {
		take, err := c.window(100, ever)
		if err == nil {
			err = holdsTo(100, take)
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	fails(t, holdsTo(100, func() bool { return true }), "more than 100")
}

// The exact log admits n calls in any window.
func TestExactLog_CountsInAnyWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l := exactLog{n: 2, window: time.Second}
		for _, call := range []struct {
			at   time.Duration
			want bool
		}{
			{0, true}, {600 * time.Millisecond, true}, {999 * time.Millisecond, false},
			{time.Second, true}, {1599 * time.Millisecond, false}, {1600 * time.Millisecond, true},
		} {
			time.Sleep(call.at - time.Since(began))
			if got := l.take(); got != call.want {
				t.Errorf("a call after %v: %t, want %t", call.at, got, call.want)
			}
		}
	})
}

// A tree that lacks a kind of limit has no row for it.
func TestWindow_MissingLimitLeavesTheRowOut(t *testing.T) {
	lacking := contender{name: "none", window: func(int, time.Duration) (func() bool, error) { return nil, errLacks }}
	if _, err := fullWindow(small, 1000).measure(lacking); !errors.Is(err, errLacks) {
		t.Errorf("got error %v", err)
	}
	old := script(t, "old", `echo '{"Values": null}'`)
	var progress strings.Builder
	rows, err := duel(t.Context(), &progress, fullWindow(small, 1000), dripfeedWindow("", oneWindow), small, old, old)
	if err != nil || len(rows) != 0 || !strings.Contains(progress.String(), "left out") {
		t.Errorf("%d rows, error %v, and it says\n%s", len(rows), err, progress.String())
	}
}
