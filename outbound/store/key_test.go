package store

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// key is one key of a store. Its times are seconds, and its calendar periods are hours.
type key struct {
	*testing.T
	Stored
	limits []Limit
}

func newKey(t *testing.T, limits ...Limit) *key { return &key{T: t, limits: limits} }

// do carries out a step.
func (k *key) do(at float64, op Op) Reply {
	k.Helper()
	op.Limits, op.Number, op.Periods = k.limits, k.Number, nil
	for range k.limits {
		op.Periods = append(op.Periods, periodOf(sec(at), 3600))
	}
	r := op.Apply(&k.Stored, sec(at))
	if r.Stale || r.Untimely {
		k.Fatalf("stale %v, untimely %v", r.Stale, r.Untimely)
	}
	return r
}

// book books calls that leave within wait.
func (k *key) book(at float64, wait time.Duration, costs ...Units) Reply {
	k.Helper()
	return k.do(at, Op{Action: Book, Costs: costs, Wait: wait, Horizon: wait})
}

// report carries out a report.
func (k *key) report(at float64, r Report) Reply {
	k.Helper()
	return k.do(at, Op{Reports: []Report{r}})
}

// replace sets other limits.
func (k *key) replace(at float64, limits ...Limit) {
	k.Helper()
	k.do(at, Op{Action: Replace, Replacement: limits})
	k.limits = limits
}

// life is the state of a key. Its times are seconds since it was made.
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

// book books a call and checks in how many seconds it leaves.
func (l *life) book(n Units, wait float64) *Charge {
	l.Helper()
	c := new(Charge)
	if real, _, ok := l.Fill(l.limits, &n, &n, time.Hour*9, c); !ok || real < sec(wait) || real > sec(wait)+3 {
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
