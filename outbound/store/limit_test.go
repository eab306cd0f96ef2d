package store

import (
	"math"
	"testing"
	"time"
)

// Sound refuses each limit that no key can have been used with.
func TestLimit_Sound(t *testing.T) {
	leaky := Limit{Capacity: 10, Rate: 1, Window: 10 * time.Second, N: 5}
	window := windowOf(10, time.Second)
	for name, c := range map[string]struct {
		of     Limit
		change func(l *Limit)
		sound  bool
	}{
		"leaky":                  {leaky, func(*Limit) {}, true},
		"leaky without N":        {leaky, func(l *Limit) { l.N, l.Window = 0, 0 }, true},
		"window":                 {window, func(*Limit) {}, true},
		"no capacity":            {leaky, func(l *Limit) { l.Capacity = 0 }, false},
		"capacity not a number":  {leaky, func(l *Limit) { l.Capacity = math.NaN() }, false},
		"infinite capacity":      {leaky, func(l *Limit) { l.Capacity = math.Inf(1) }, false},
		"unit below 0":           {leaky, func(l *Limit) { l.Unit = -1 }, false},
		"unit above the largest": {leaky, func(l *Limit) { l.Unit = MaxUnit + 1 }, false},
		"unknown kind":           {leaky, func(l *Limit) { l.Kind = Monthly + 1 }, false},
		"window below 0":         {leaky, func(l *Limit) { l.Window = -1 }, false},
		"N below 0":              {leaky, func(l *Limit) { l.N = -1 }, false},
		"N not a number":         {leaky, func(l *Limit) { l.N = math.NaN() }, false},
		"infinite N":             {leaky, func(l *Limit) { l.N = math.Inf(1) }, false},
		"N of no window":         {leaky, func(l *Limit) { l.Window = 0 }, false},
		"N of a moving window":   {window, func(l *Limit) { l.N = 10 }, false},
		"no rate":                {leaky, func(l *Limit) { l.Rate = 0 }, false},
		"rate of another window": {window, func(l *Limit) { l.Rate *= 2 }, false},
	} {
		l := c.of
		if c.change(&l); l.Sound() != c.sound {
			t.Errorf("%s: sound is %v", name, !c.sound)
		}
	}
}

// A call takes at least a billionth of the capacity, and never more than all of it by rounding.
func TestLimit_Takes(t *testing.T) {
	l := Limit{Capacity: 10, Rate: 1}
	for n, want := range map[float64]float64{0: 0, 1e-12: 1e-8, 3: 3, 10: 10, 10 + 1e-9: 10, 11: 11} {
		if got := l.Takes(n); got != want {
			t.Errorf("a call of %v takes %v, want %v", n, got, want)
		}
	}
}

func windowOf(n float64, of time.Duration) Limit {
	return Limit{Kind: Window, Capacity: n, Rate: n / of.Seconds(), Window: of}
}
