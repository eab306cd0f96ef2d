package store

import (
	"slices"
	"testing"
	"time"
)

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
