package store

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// An Update whose context has ended fails with the context's error, and charges nothing.
func TestMemory_EndedContextChargesNothing(t *testing.T) {
	m := NewMemory()
	op := &Op{Limits: []Limit{{Capacity: 1, Rate: 1e-6}}, Action: Book, Costs: []Units{{1}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Update(ctx, "key", op); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	if r, err := m.Update(t.Context(), "key", op); err != nil || len(r.Charges) != 1 {
		t.Errorf("%d booked, %v", len(r.Charges), err)
	}
}

// Many goroutines use one key and keys of their own: each key admits its capacity.
func TestMemory_ConcurrentUpdatesKeepTheLimit(t *testing.T) {
	const callers, each = 8, 50
	m := NewMemory()
	var running sync.WaitGroup
	var mu sync.Mutex
	booked := map[string]int{}
	for i := range callers {
		running.Go(func() {
			for j := range each {
				for _, key := range []string{"shared", strconv.Itoa(i*each + j)} {
					op := &Op{Limits: []Limit{{Capacity: each, Rate: 1e-6}}, Action: Book, Costs: []Units{{1}}}
					r, err := m.Update(context.Background(), key, op)
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					booked[key] += len(r.Charges)
					mu.Unlock()
				}
			}
		})
	}
	running.Wait()
	for key, n := range booked {
		if want := map[bool]int{true: each, false: 1}[key == "shared"]; n != want {
			t.Errorf("key %q: %d booked, want %d", key, n, want)
		}
	}
}

// Times counts a time by the first bound that it does not exceed.
func TestTimes_Within(t *testing.T) {
	if !slices.IsSorted(TimeBounds[:]) || TimeBounds[0] != time.Millisecond || TimeBounds[14] != time.Hour {
		t.Errorf("the bounds are %v", TimeBounds)
	}
	var sum, times Times
	for _, bound := range TimeBounds {
		times.Add(bound)
		times.Add(bound + 1)
	}
	sum.Plus(&times)
	sum.Plus(&times)
	for i, n := range sum.Within {
		if want := min(4, uint64(2+4*i)); n != want {
			t.Errorf("%d times within %v, want %d", n, TimeBounds[i], want)
		}
	}
	if sum.Count != 4*uint64(len(TimeBounds)) || sum.Time != 2*times.Time {
		t.Errorf("%+v", sum)
	}
}

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
