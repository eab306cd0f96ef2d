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

// A move is carried out in a step whose settles add nothing, and not in one whose settles add units.
func TestMove_AndSettles(t *testing.T) {
	for used, moved := range map[float64]bool{0: true, 1: true, 2: false} {
		var s Stored
		op := Op{Limits: one(3, 1), Action: Book, Costs: []Units{{1}, {3}}, Horizon: time.Hour}
		r := op.Apply(&s, 0)
		again := Op{
			Limits: s.Limits, Number: s.Number, Action: Book, Costs: []Units{{2}}, Move: &r.Charges[1],
			Reports: []Report{{Kind: Settled, Charge: &r.Charges[0], Used: Units{used}}},
		}
		if got := again.Apply(&s, 0); got.Moved != moved || len(got.Charges) == 1 != moved {
			t.Errorf("a call of 1 that has cost %v: moved %v, %d charges; want %v", used, got.Moved, len(got.Charges), moved)
		}
	}
}
