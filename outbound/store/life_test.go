package store

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// life is a bucket in a test. Its times are seconds since it was made.
type life struct {
	*testing.T
	State
	limits []Limit
	number int64
}

func newLife(t *testing.T, limits ...Limit) *life {
	limits = numbered(limits)
	return &life{t, New(-7*time.Hour, len(limits)), limits, 0} // process time may be negative
}

// numbered names the limits that have no names by their order.
func numbered(limits []Limit) []Limit {
	limits = slices.Clone(limits)
	for i := range limits {
		if limits[i].Name == "" {
			limits[i].Name = fmt.Sprint(i)
		}
	}
	return limits
}

// change sets other limits.
func (l *life) change(limits ...Limit) {
	limits = numbered(limits)
	l.number++
	l.Change(l.limits, limits, l.number)
	l.limits = limits
}

func sec(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }

func (l *life) at(s float64) { l.Advance(l.limits, -7*time.Hour+sec(s)) }

// book books a place and checks how many seconds away it is.
func (l *life) book(n Units, wait float64) *Charge {
	l.Helper()
	c := new(Charge)
	if real, _, ok := l.Fill(l.limits, &n, time.Hour*9, c); !ok || real < sec(wait) || real > sec(wait)+3 {
		l.Errorf("a call of %v goes after %v (%v), want %v", n[:2], real, ok, sec(wait))
	}
	return c
}

func (l *life) level(i int, want float64) {
	l.Helper()
	if got := l.Level[i]; math.Abs(got-want) > 1e-6 {
		l.Errorf("level %v, want %v", got, want)
	}
}

func perSecond(n, in float64) Limit { return Limit{Capacity: 1, Rate: n / (in + 0.01)} }

// The second call fills the other limit at 2 s, not at once.
func TestFill_FillsOtherLimitsWhenTheCallLeaves(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 0.5}, Limit{Capacity: 3, Rate: 1})
	l.book(Units{1, 1}, 0)
	l.book(Units{1, 3}, 2)
	l.book(Units{1, 3}, 5) // not 4, with 4 units together
}
