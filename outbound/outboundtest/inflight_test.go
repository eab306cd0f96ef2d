package outboundtest_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// flight is a call of a process, in seconds after noon.
type flight struct {
	process    string
	begin, end int
}

func callsOf(reached map[string][]int, flights ...flight) *Calls {
	var c Calls
	after := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	for process, times := range reached {
		for _, s := range times {
			c.Reached(process, after(s))
		}
	}
	for _, f := range flights {
		c.Add(f.process, after(f.begin), after(f.end))
	}
	return &c
}

// The checker finds one call too many, and allows calls whose process was silent for a lease.
func TestCalls_Check(t *testing.T) {
	a, b := flight{"a", 0, 20}, flight{"b", 15, 25}
	for _, c := range []struct {
		name    string
		reached map[string][]int
		flights []flight
		most    int // of calls in flight, with a silence of 10 s
	}{
		{"none", nil, nil, 0},
		{"one after the other", nil, []flight{{"a", 0, 5}, {"b", 5, 9}}, 1},
		{"two of a process", nil, []flight{{"a", 0, 5}, {"a", 4, 9}}, 2},
		{"two processes without a store", nil, []flight{a, b}, 2},
		{"silent since before the call of another process", map[string][]int{"a": {0}, "b": {14}}, []flight{a, b}, 1},
		{"silent for a lease when the other call begins", map[string][]int{"a": {5}, "b": {14}}, []flight{a, b}, 1},
		{"silent for less", map[string][]int{"a": {6}, "b": {14}}, []flight{a, b}, 2},
		{"reaches the store in between", map[string][]int{"a": {0, 9}, "b": {14}}, []flight{a, b}, 2},
		{"reaches the store just in time", map[string][]int{"a": {5, 15}, "b": {14}}, []flight{a, b}, 2},
		{"is back before the other call begins", map[string][]int{"a": {0, 12}, "b": {14}}, []flight{a, b}, 1},
		{"begins after the silence", map[string][]int{"a": {0}, "b": {14}}, []flight{{"a", 11, 20}, b}, 2},
		{"begins after the silence, and is silent for long", map[string][]int{"a": {0, 12}, "b": {23}}, []flight{{"a", 11, 30}, {"b", 21, 25}, {"b", 21, 25}}, 3},
		{"has ended by itself", map[string][]int{"a": {0, 30}}, []flight{{"a", 1, 9}, {"a", 31, 33}}, 1},
		{"of no length", nil, []flight{{"a", 3, 3}, {"b", 3, 3}}, 0},
	} {
		calls := callsOf(c.reached, c.flights...)
		if most, _ := calls.Most(10 * time.Second); most != c.most || calls.Len() != len(c.flights) {
			t.Errorf("%s: %d of %d calls, want %d of %d", c.name, most, calls.Len(), c.most, len(c.flights))
		}
		errorIs(t, calls.Check(c.most, 10*time.Second), nil, "%s", c.name)
		if err := calls.Check(c.most-1, 10*time.Second); err == nil || !strings.Contains(err.Error(), fmt.Sprint(c.most, " calls in flight at ")) {
			t.Errorf("%s: one call too many is reported as %v", c.name, err)
		}
	}
	wantPanic(t, "must not end before it begins", func() { callsOf(nil, flight{"a", 2, 1}) })
	wantPanic(t, "a silence of 0s", func() { _ = new(Calls).Check(1, 0) })
}

// The checker agrees with a count of the calls at each second.
func TestCalls_AgreesWithCountingEachSecond(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		reached := map[string][]int{}
		var flights []flight
		for range random.IntN(8) {
			begin := random.IntN(30)
			flights = append(flights, flight{string(rune('a' + random.IntN(3))), begin, begin + random.IntN(12)})
		}
		for range random.IntN(6) {
			p := string(rune('a' + random.IntN(3)))
			reached[p] = append(reached[p], random.IntN(40)) // in any order
		}
		const silence = 5
		counts := func(f flight, at int) bool {
			for lapse := f.begin + 1; lapse <= at; lapse++ { // the process may have been silent for long from then on
				since := -1
				for _, s := range reached[f.process] {
					if s <= lapse {
						since = max(since, s)
					}
				}
				if since >= 0 && lapse == since+silence {
					return false
				}
			}
			return f.begin <= at && at < f.end
		}
		want := 0
		for at := range 45 {
			n := 0
			for _, f := range flights {
				if counts(f, at) {
					n++
				}
			}
			want = max(want, n)
		}
		most, _ := callsOf(reached, flights...).Most(silence * time.Second)
		fatalIf(t, most != want, "%v, reached %v: %d in flight, want %d", flights, reached, most, want)
	}
}
